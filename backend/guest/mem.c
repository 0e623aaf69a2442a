/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Guest memory: keeping the VMM's DMA map.
 *
 * A VMM maps few files in many ranges, and firmware moves those ranges about by
 * the thousand.  So a file is mapped once per VM, from its beginning to its
 * end, counted by the ranges in it; ranges are just addresses inside.  That
 * also is the only way for hugetlb files, whose mappings must begin and end on
 * huge page borders.  A file that has grown since is mapped anew, larger.
 *
 * Changes (main thread): build a new array, publish it, wait for the workers
 * to be past the old one (grace_wait), then unmap and free.  The fields
 * of struct guest_file are the main thread's; workers see the array only.
 *
 * The descriptor is as untrusted as the numbers: see check_fd().
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "grace.h"
#include "guest/guest.h"
#include "guest/sigbus.h"
#include "pvrdma/vfio_user.h"

/* Bounds per VM, so that one cannot use up the process's address space. */
#define MAX_FILES 512u
#define MAX_BYTES (UINT64_C(1) << 42)

/* Largest page size of a file system we believe (1 GiB huge pages). */
#define MAX_PAGE (UINT64_C(1) << 30)

/* A file in our address space, from its offset 0. */
struct mapping {
    uint8_t *base;
    uint64_t len; /* bytes, whole pages of the file */
    int guard;    /* SIGBUS table slot */
};

struct guest_file {
    /* The key.  A file may come read-only and, by another fd, writable. */
    dev_t dev;
    ino_t ino;
    bool writable;

    struct mapping at;
    unsigned refs; /* ranges */
};

/* What is known of a descriptor that passed the checks. */
struct fd_info {
    dev_t dev;
    ino_t ino;
    bool writable;
    uint64_t size; /* of the file */
    uint64_t page; /* unit of mapping */
};

static guint file_hash(gconstpointer p)
{
    const struct guest_file *f = p;
    uint64_t h = (uint64_t)f->ino * UINT64_C(0x9e3779b97f4a7c15);

    h ^= (uint64_t)f->dev + f->writable;
    return (guint)(h ^ h >> 32);
}

static gboolean file_equal(gconstpointer pa, gconstpointer pb)
{
    const struct guest_file *a = pa, *b = pb;

    return a->dev == b->dev && a->ino == b->ino && a->writable == b->writable;
}

static void mapping_drop(const struct mapping *m)
{
    sigbus_unguard(m->guard);
    munmap(m->base, m->len);
}

static void file_destroy(gpointer p)
{
    struct guest_file *f = p;

    mapping_drop(&f->at);
    g_free(f);
}

static struct guest_map *map_alloc(unsigned n)
{
    static uint64_t generation; /* of all VMs: main thread only */
    struct guest_map *map;

    map = g_try_malloc(sizeof(*map) + n * sizeof(map->region[0]));
    if (map) {
        map->generation = ++generation;
        map->n = n;
    }
    return map;
}

static struct guest_map *current_map(struct guest_mem *mem)
{
    return atomic_load_explicit(&mem->map, memory_order_relaxed);
}

/* Publish @map; on return no worker uses the former one, which is freed. */
static void map_replace(struct guest_mem *mem, struct guest_map *map)
{
    struct guest_map *old = current_map(mem);

    atomic_store_explicit(&mem->map, map, memory_order_release);
    grace_wait();
    g_free(old);
}

void guest_mem_init_process(void)
{
    sigbus_init();
}

void guest_mem_init(struct guest_mem *mem, struct guest *guest, bool require_sealed)
{
    struct guest_map *empty = g_new0(struct guest_map, 1);

    mem->guest = guest;
    mem->require_sealed = require_sealed;
    mem->files = g_hash_table_new_full(file_hash, file_equal, file_destroy, NULL);
    atomic_store(&mem->map, empty);
}

void guest_mem_fini(struct guest_mem *mem)
{
    struct guest_map *map = atomic_exchange(&mem->map, NULL);

    if (mem->files) {
        g_hash_table_destroy(mem->files);
        mem->files = NULL;
    }
    g_free(map);
}

/*
 * Is the descriptor fit to be guest RAM?  It must be a regular file (memfd,
 * shmem, hugetlbfs, file) that nobody can truncate under us (unless the
 * operator lifted that), opened so as to allow what the flags promise.
 * Returns 0 or EPERM.
 */
static int check_fd(struct guest_mem *mem, int fd, bool write, struct fd_info *info)
{
    struct stat st;
    struct statfs fs;
    int mode = fcntl(fd, F_GETFL);
    int seals = fcntl(fd, F_GET_SEALS);

    /* First, since it does not ask the file system, which might not answer. */
    if (mem->require_sealed && (seals < 0 || !(seals & F_SEAL_SHRINK))) {
        log_guest(LOG_LVL_WARN, mem->guest,
                  "refused guest memory: not a memfd sealed against shrinking "
                  "(use memory-backend-memfd)");
        return EPERM;
    }
    if (mode < 0 || (mode & O_PATH) || fstat(fd, &st) < 0 || fstatfs(fd, &fs) < 0 ||
        !S_ISREG(st.st_mode)) {
        log_guest(LOG_LVL_WARN, mem->guest,
                  "refused guest memory: the descriptor is not a regular file");
        return EPERM;
    }
    mode &= O_ACCMODE;
    if (mode == O_WRONLY || (write && mode != O_RDWR)) {
        log_guest(LOG_LVL_WARN, mem->guest,
                  "refused guest memory: opened without the access it promises");
        return EPERM;
    }
    info->dev = st.st_dev;
    info->ino = st.st_ino;
    info->writable = write;
    info->size = (uint64_t)st.st_size;
    info->page = PVRDMA_PAGE_SIZE;
    if (fs.f_type == HUGETLBFS_MAGIC) {
        info->page = (uint64_t)fs.f_bsize;
    }
    if (info->page < PVRDMA_PAGE_SIZE || info->page > MAX_PAGE ||
        (info->page & (info->page - 1))) {
        return EPERM;
    }
    return 0;
}

static uint64_t mapped_bytes(struct guest_mem *mem)
{
    GHashTableIter it;
    gpointer f;
    uint64_t sum = 0;

    g_hash_table_iter_init(&it, mem->files);
    while (g_hash_table_iter_next(&it, &f, NULL)) {
        sum += ((struct guest_file *)f)->at.len;
    }
    return sum;
}

/*
 * Map the file from 0 to its end, at least to @end.  Returns 0 with *m set, or
 * ENOMEM, ENOSPC, EPERM.
 */
static int map_file(struct guest_mem *mem, int fd, const struct fd_info *info,
                    uint64_t end, struct mapping *m)
{
    uint64_t room = MAX_BYTES - MIN(mapped_bytes(mem), MAX_BYTES);
    uint64_t want = info->size & ~(info->page - 1);
    int prot = info->writable ? PROT_READ | PROT_WRITE : PROT_READ;
    void *p;

    /* A huge sparse file of which little is used must not eat the budget. */
    if (want < end || want > room) {
        want = (end + info->page - 1) & ~(info->page - 1);
    }
    if (want > room) {
        return ENOSPC;
    }
    p = mmap(NULL, want, prot, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (p == MAP_FAILED) {
        return errno == EPERM || errno == EACCES ? EPERM : ENOMEM;
    }
    m->guard = sigbus_guard(p, want, info->page, mem->guest);
    if (m->guard < 0) {
        munmap(p, want);
        return ENOSPC;
    }
    /* Guest memory belongs neither in core dumps nor in child processes. */
    madvise(p, want, MADV_DONTDUMP);
    madvise(p, want, MADV_DONTFORK);
    m->base = p;
    m->len = want;
    return 0;
}

/*
 * The file behind @fd, mapped up to @end at least.  If it had to be mapped
 * anew, *old is the former mapping (else its base is NULL): the caller moves
 * the regions over and drops *old when no worker uses it.
 */
static int file_get(struct guest_mem *mem, int fd, const struct fd_info *info,
                    uint64_t end, struct guest_file **file, struct mapping *old)
{
    struct guest_file key = {
        .dev = info->dev, .ino = info->ino, .writable = info->writable};
    struct guest_file *f = g_hash_table_lookup(mem->files, &key);
    struct mapping m;
    int err;

    old->base = NULL;
    if (f && end <= f->at.len) {
        *file = f;
        return 0;
    }
    if (!f && g_hash_table_size(mem->files) >= MAX_FILES) {
        return ENOSPC;
    }
    err = map_file(mem, fd, info, end, &m);
    if (err) {
        return err;
    }
    if (f) {
        *old = f->at;
    } else {
        f = g_memdup2(&key, sizeof(key));
        g_hash_table_add(mem->files, f);
    }
    f->at = m;
    *file = f;
    return 0;
}

/*
 * Where does [gpa, gpa + size) go in @map?  Returns 0 with *pos, or EEXIST if a
 * range overlaps it.
 */
static int find_gap(const struct guest_map *map, uint64_t gpa, uint64_t size,
                    unsigned *pos)
{
    unsigned lo = 0, hi = map->n;

    while (lo < hi) {
        unsigned mid = (lo + hi) / 2;

        if (map->region[mid].gpa <= gpa) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    if (lo > 0 && gpa - map->region[lo - 1].gpa < map->region[lo - 1].size) {
        return EEXIST;
    }
    if (lo < map->n && map->region[lo].gpa - gpa < size) {
        return EEXIST;
    }
    *pos = lo;
    return 0;
}

static bool page_aligned(uint64_t v)
{
    return (v & (PVRDMA_PAGE_SIZE - 1)) == 0;
}

static bool map_args_valid(uint64_t offset, uint64_t gpa, uint64_t size, uint32_t flags)
{
    const uint32_t all = VFIO_USER_DMA_READ_FLAG | VFIO_USER_DMA_WRITE_FLAG;

    return !(flags & ~all) && (flags & VFIO_USER_DMA_READ_FLAG) && size != 0 &&
           page_aligned(gpa) && page_aligned(size) && page_aligned(offset) &&
           size - 1 <= UINT64_MAX - gpa;
}

/* Publish the map with @region added at @pos; @old as from file_get(). */
static void insert(struct guest_mem *mem, struct guest_map *map,
                   const struct guest_region *region, unsigned pos,
                   const struct mapping *old)
{
    const struct guest_map *cur = current_map(mem);

    memcpy(map->region, cur->region, pos * sizeof(*region));
    map->region[pos] = *region;
    memcpy(map->region + pos + 1, cur->region + pos, (cur->n - pos) * sizeof(*region));
    if (old->base) {
        for (unsigned i = 0; i < map->n; i++) {
            struct guest_region *r = &map->region[i];

            if (i != pos && r->file == region->file) {
                r->hva = region->file->at.base + (r->hva - old->base);
            }
        }
    }
    map_replace(mem, map);
    if (old->base) {
        mapping_drop(old);
    }
}

int guest_mem_map(struct guest_mem *mem, int fd, uint64_t offset, uint64_t gpa,
                  uint64_t size, uint32_t flags)
{
    const struct guest_map *cur = current_map(mem);
    bool write = flags & VFIO_USER_DMA_WRITE_FLAG;
    struct guest_region region = {.gpa = gpa, .size = size, .writable = write};
    struct fd_info info = {0};
    struct mapping old = {0};
    struct guest_map *map;
    unsigned pos;
    int err;

    if (!map_args_valid(offset, gpa, size, flags)) {
        return EINVAL;
    }
    err = find_gap(cur, gpa, size, &pos);
    if (err) {
        return err;
    }
    if (cur->n >= GUEST_MEM_MAX_REGIONS) {
        return ENOSPC;
    }
    if (fd >= 0) {
        err = check_fd(mem, fd, write, &info);
        if (err) {
            return err;
        }
        if (offset > info.size || size > info.size - offset) {
            return EINVAL;
        }
    }
    map = map_alloc(cur->n + 1);
    if (!map) {
        return ENOMEM;
    }
    if (fd >= 0) {
        err = file_get(mem, fd, &info, offset + size, &region.file, &old);
        if (err) {
            g_free(map);
            return err;
        }
        region.hva = region.file->at.base + offset;
        region.file->refs++;
    }
    insert(mem, map, &region, pos, &old);
    return 0;
}

static void file_put(struct guest_mem *mem, struct guest_file *f)
{
    if (f && --f->refs == 0) {
        g_hash_table_remove(mem->files, f);
    }
}

static int unmap_all(struct guest_mem *mem)
{
    struct guest_map *map = map_alloc(0);

    if (!map) {
        return ENOMEM;
    }
    map_replace(mem, map);
    g_hash_table_remove_all(mem->files);
    return 0;
}

int guest_mem_unmap(struct guest_mem *mem, uint64_t gpa, uint64_t size, bool all)
{
    const struct guest_map *cur = current_map(mem);
    const struct guest_region *r;
    struct guest_file *file;
    struct guest_map *map;
    unsigned pos;

    if (all) {
        return unmap_all(mem);
    }
    if (size == 0 || size - 1 > UINT64_MAX - gpa) {
        return EINVAL;
    }
    r = guest_map_find(cur, gpa);
    if (!r || r->gpa != gpa || r->size != size) {
        return r ? EINVAL : ENOENT;
    }
    map = map_alloc(cur->n - 1);
    if (!map) {
        return ENOMEM;
    }
    pos = (unsigned)(r - cur->region);
    memcpy(map->region, cur->region, pos * sizeof(*r));
    memcpy(map->region + pos, cur->region + pos + 1, (cur->n - pos - 1) * sizeof(*r));
    file = r->file;
    map_replace(mem, map);
    file_put(mem, file);
    return 0;
}

void guest_mem_get_stats(struct guest_mem *mem, struct guest_mem_stats *st)
{
    const struct guest_map *map = current_map(mem);

    *st = (struct guest_mem_stats){0};
    if (map) {
        st->regions = map->n;
        st->files = g_hash_table_size(mem->files);
        st->bytes = mapped_bytes(mem);
    }
}
