/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Guest memory: keeping the VMM's DMA map.
 *
 * A VMM maps few files in many ranges, and firmware moves those ranges about by
 * the thousand.  So ranges are just addresses inside a few larger mappings of the
 * file, counted by the ranges in it.  That also is the only way for hugetlb files,
 * whose mappings must begin and end on huge page borders.
 *
 * Such a mapping covers what the ranges need and some more, never simply the file:
 * terabytes of a sparse one cost the VMM nothing, but address space is the daemon's.
 * A range near a mapping makes that grow (it is mapped anew, twice as large, and its
 * regions move over), one far from it gets a mapping of its own while the VM has some
 * left.  All of it is taken out of the guest's budget.
 *
 * Changes (main thread): build a new array, publish it, wait for the workers
 * to be past the old one (grace_wait), then give what is out of use to the reaper.
 * The wait may let the main loop go on; the map of one VM is changed by one command
 * at a time, and until the wait is over nothing that was unpublished is let go.  The
 * fields of struct guest_file are the main thread's; workers see the array only.
 *
 * The descriptor is as untrusted as the numbers: see check_fd().  One of each mapping's
 * file is kept, so that a daemon which takes this one's place can map it as well: of
 * files in memory alone (memfd, shmem, huge pages), since closing asks other file
 * systems, which may be the client's own.  The reaper closes it.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/grace.h"
#include "guest/budget.h"
#include "guest/guest.h"
#include "guest/reaper.h"
#include "guest/sigbus.h"
#include "pvrdma/vfio_user.h"

/* Largest page size of a file system we believe (1 GiB huge pages). */
#define MAX_PAGE (UINT64_C(1) << 30)

/* Mappings begin and end at multiples of this where the file permits. */
#define CHUNK (UINT64_C(64) << 20)

/* Mappings of one file before a range far from all of them makes one grow. */
#define MAX_PER_FILE 4u

/* Bytes [start, end) of a file, whole pages of it. */
struct span {
    uint64_t start, end;
};

/* ... in our address space. */
struct mapping {
    uint8_t *base;
    struct span at;
    uint64_t page;
    int guard;    /* SIGBUS table slot */
    bool retired; /* counted as pending already */
};

/* One mapping of a file; there may be others of the same. */
struct guest_file {
    /* A file may come read-only and, by another fd, writable. */
    dev_t dev;
    ino_t ino;
    bool writable;

    struct mapping m;
    int fd;        /* of the file; -1: not kept */
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

/*
 * It is out of use: no thread can touch it any more, so it needs no guard.  @fd is
 * closed behind it, unless it is -1.
 */
static void mapping_drop(struct guest_mem *mem, const struct mapping *m, int fd)
{
    uint64_t len = m->at.end - m->at.start;

    sigbus_unguard(m->guard);
    if (!m->retired) {
        budget_retire(mem->budget, len);
    }
    reaper_unmap(m->base, len, m->page, mem->budget, fd);
}

static void files_drop(struct guest_mem *mem)
{
    for (unsigned i = 0; i < mem->files->len; i++) {
        struct guest_file *f = g_ptr_array_index(mem->files, i);

        mapping_drop(mem, &f->m, f->fd);
        g_free(f);
    }
    g_ptr_array_set_size(mem->files, 0);
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
    atomic_store(&mem->dirty, NULL);
    mem->require_sealed = require_sealed;
    mem->files = g_ptr_array_new();
    mem->max_files = BUDGET_GUEST_FILES;
    if (!mem->budget) {
        mem->budget = budget_new();
    }
    atomic_store(&mem->map, empty);
}

void guest_mem_limit(struct guest_mem *mem, uint64_t max_bytes, unsigned max_files)
{
    mem->max_files = max_files ? max_files : BUDGET_GUEST_FILES;
    budget_set(mem->budget, max_bytes ? max_bytes : BUDGET_GUEST_BYTES, mem->max_files);
}

void guest_mem_forget(struct guest_mem *mem)
{
    budget_unref(mem->budget);
    mem->budget = NULL;
}

bool guest_mem_piled_up(struct guest_mem *mem)
{
    return budget_piled_up(mem->budget);
}

void guest_mem_fini(struct guest_mem *mem)
{
    struct guest_map *map = atomic_exchange(&mem->map, NULL);
    struct budget_stats st;

    dirty_free(atomic_exchange(&mem->dirty, NULL));
    if (mem->files) {
        files_drop(mem);
        g_ptr_array_free(mem->files, TRUE);
        mem->files = NULL;
    }
    g_free(map);
    budget_get(mem->budget, &st);
    if (st.bytes == 0) {
        guest_mem_forget(mem); /* else the next VMM inherits it */
    }
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
                  "refused guest memory: the descriptor's access mode does not permit "
                  "the mapping");
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

/* Map exactly @at.  Returns 0 with *m set, or ENOMEM, ENOSPC (with *why), EPERM. */
static int map_span(struct guest_mem *mem, int fd, const struct fd_info *info,
                    const struct span *at, struct mapping *m, const char **why)
{
    int prot = info->writable ? PROT_READ | PROT_WRITE : PROT_READ;
    uint64_t len = at->end - at->start;
    int err = 0;
    void *p;

    *why = budget_take(mem->budget, len);
    if (*why) {
        return ENOSPC;
    }
    p = mmap(NULL, len, prot, MAP_SHARED | MAP_NORESERVE, fd, (off_t)at->start);
    if (p == MAP_FAILED) {
        err = errno == EPERM || errno == EACCES ? EPERM : ENOMEM;
        budget_retire(mem->budget, len);
        budget_give(mem->budget, len, 1);
        return err;
    }
    *m = (struct mapping){.base = p, .at = *at, .page = info->page};
    m->guard = sigbus_guard(p, len, info->page, mem->guest);
    if (m->guard < 0) { /* cannot be: there are as many as mappings */
        *why = "no guard against page faults is left";
        mapping_drop(mem, m, -1);
        return ENOSPC;
    }
    /* Guest memory belongs neither in core dumps nor in child processes. */
    madvise(p, len, MADV_DONTDUMP);
    madvise(p, len, MADV_DONTFORK);
    return 0;
}

/* Widen @at to multiples of @unit, a power of two, as far as the file's pages go. */
static void widen(struct span *at, uint64_t unit, const struct fd_info *info)
{
    uint64_t size = info->size & ~(info->page - 1);
    uint64_t end = at->end > UINT64_MAX - unit ? size : at->end + unit - 1;

    at->start &= ~(unit - 1);
    at->end = MAX(at->end, MIN(end & ~(unit - 1), size));
}

/*
 * Map at least @need, @want if the budget has room for it.  @want contains @need;
 * both consist of whole pages.
 */
static int map_file(struct guest_mem *mem, int fd, const struct fd_info *info,
                    struct span need, struct span want, struct mapping *m,
                    const char **why)
{
    int err;

    widen(&want, MAX(CHUNK, info->page), info);
    err = map_span(mem, fd, info, &want, m, why);
    if (err == ENOSPC || err == ENOMEM) {
        err = map_span(mem, fd, info, &need, m, why);
    }
    return err;
}

/* A descriptor of our own for the same file, or -1. */
static int keep_fd(int fd)
{
    return fcntl(fd, F_GET_SEALS) >= 0 ? fcntl(fd, F_DUPFD_CLOEXEC, 0) : -1;
}

static bool same_file(const struct guest_file *f, const struct fd_info *info)
{
    return f->dev == info->dev && f->ino == info->ino && f->writable == info->writable;
}

/* Bytes between two spans; 0: they meet or overlap. */
static uint64_t span_gap(const struct span *a, const struct span *b)
{
    if (a->end < b->start) {
        return b->start - a->end;
    }
    return b->end < a->start ? a->start - b->end : 0;
}

/* What the guest has of a file. */
struct found {
    struct guest_file *holds; /* all of the range */
    struct guest_file *near;  /* or else is the nearest */
    uint64_t gap;
    unsigned n;
};

static struct found find_file(struct guest_mem *mem, const struct fd_info *info,
                              const struct span *need)
{
    struct found res = {0};

    for (unsigned i = 0; i < mem->files->len; i++) {
        struct guest_file *f = g_ptr_array_index(mem->files, i);
        uint64_t gap = span_gap(&f->m.at, need);

        if (!same_file(f, info)) {
            continue;
        }
        if (f->m.at.start <= need->start && f->m.at.end >= need->end) {
            res.holds = f;
        }
        if (!res.near || gap < res.gap) {
            res.near = f;
            res.gap = gap;
        }
        res.n++;
    }
    return res;
}

/* Should a range that far from @found.near make that grow? */
static bool should_grow(const struct guest_mem *mem, const struct found *found)
{
    const struct span *at;

    if (!found->near) {
        return false;
    }
    at = &found->near->m.at;
    return found->gap <= MAX(CHUNK, at->end - at->start) || found->n >= MAX_PER_FILE ||
           mem->files->len >= mem->max_files;
}

/*
 * Map @f anew with @need in it.  Twice as large as needed, into the direction that
 * was asked for, so that many steps cost as much as a few.
 */
static int grow(struct guest_mem *mem, int fd, const struct fd_info *info,
                struct guest_file *f, const struct span *need, struct mapping *old,
                const char **why)
{
    struct span both = {MIN(f->m.at.start, need->start), MAX(f->m.at.end, need->end)};
    uint64_t size = info->size & ~(info->page - 1), len = both.end - both.start;
    struct span want = both;
    struct mapping m;
    int err;

    if (need->end > f->m.at.end) {
        want.end += MIN(len, size - MIN(size, both.end));
    }
    if (need->start < f->m.at.start) {
        want.start -= MIN(len, want.start);
    }
    /* What it replaces is about to go, and must not use up the limit for it. */
    budget_retire(mem->budget, f->m.at.end - f->m.at.start);
    err = map_file(mem, fd, info, both, want, &m, why);
    if (err) {
        budget_unretire(mem->budget, f->m.at.end - f->m.at.start);
        return err;
    }
    *old = f->m;
    old->retired = true;
    f->m = m;
    return 0;
}

/*
 * The mapping with @need of the file behind @fd in it.  If it had to be mapped anew,
 * *old is the former one (else its base is NULL): the caller moves the regions over
 * and drops *old when no worker uses it.  ENOSPC: *why.
 */
static int file_get(struct guest_mem *mem, int fd, const struct fd_info *info,
                    struct span need, struct guest_file **file, struct mapping *old,
                    const char **why)
{
    struct found found;
    struct guest_file *f;
    int err;

    widen(&need, info->page, info);
    found = find_file(mem, info, &need);
    if (found.holds) {
        *file = found.holds;
        return 0;
    }
    if (should_grow(mem, &found)) {
        *file = found.near;
        err = grow(mem, fd, info, found.near, &need, old, why);
        if (err != ENOSPC && err != ENOMEM) {
            return err;
        }
    }
    if (mem->files->len >= mem->max_files) {
        if (!*why) { /* else that is why the nearest could not grow */
            *why = "it has as many files mapped as its max-files";
        }
        return ENOSPC;
    }
    f = g_new0(struct guest_file, 1);
    *f = (struct guest_file){
        .dev = info->dev, .ino = info->ino, .writable = info->writable};
    err = map_file(mem, fd, info, need, need, &f->m, why);
    if (err) {
        g_free(f);
        return err;
    }
    f->fd = keep_fd(fd);
    g_ptr_array_add(mem->files, f);
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

/* Where byte @offset of the file is mapped. */
static uint8_t *host_address(const struct guest_file *f, uint64_t offset)
{
    return f->m.base + (offset - f->m.at.start);
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
                uint64_t offset = old->at.start + (uint64_t)(r->hva - old->base);

                r->hva = host_address(region->file, offset);
            }
        }
    }
    map_replace(mem, map);
    if (old->base) {
        mapping_drop(mem, old, -1); /* the file is still in use */
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
    const char *why = NULL;
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
        err = file_get(mem, fd, &info, (struct span){offset, offset + size}, &region.file,
                       &old, &why);
        if (err == ENOSPC) {
            mem->refused++;
            log_guest(LOG_LVL_WARN, mem->guest, "refused guest memory: %s", why);
        }
        if (err) {
            g_free(map);
            return err;
        }
        region.hva = host_address(region.file, offset);
        region.file->refs++;
    }
    insert(mem, map, &region, pos, &old);
    return 0;
}

static void file_put(struct guest_mem *mem, struct guest_file *f)
{
    if (f && --f->refs == 0) {
        g_ptr_array_remove_fast(mem->files, f);
        mapping_drop(mem, &f->m, f->fd);
        g_free(f);
    }
}

static int unmap_all(struct guest_mem *mem)
{
    struct guest_map *map = map_alloc(0);

    if (!map) {
        return ENOMEM;
    }
    map_replace(mem, map);
    files_drop(mem);
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

bool guest_read(struct guest_mem *mem, uint64_t gpa, void *dst, uint64_t len)
{
    const void *p = guest_ptr(mem, gpa, len, false);

    if (!p) {
        return false;
    }
    memcpy(dst, p, len);
    return guest_believed(mem->guest);
}

unsigned guest_mem_ranges(struct guest_mem *mem)
{
    return current_map(mem)->n;
}

bool guest_mem_range(struct guest_mem *mem, unsigned i, struct guest_mem_range *out)
{
    const struct guest_region *r = &current_map(mem)->region[i];

    *out = (struct guest_mem_range){.gpa = r->gpa, .size = r->size, .fd = -1};
    out->flags = VFIO_USER_DMA_READ_FLAG | (r->writable ? VFIO_USER_DMA_WRITE_FLAG : 0);
    if (!r->file) {
        return true;
    }
    out->offset = r->file->m.at.start + (uint64_t)(r->hva - r->file->m.base);
    out->fd = r->file->fd;
    return out->fd >= 0;
}

void guest_mem_get_stats(struct guest_mem *mem, struct guest_mem_stats *st)
{
    const struct guest_map *map = current_map(mem);
    struct budget_stats budget;

    budget_get(mem->budget, &budget);
    *st = (struct guest_mem_stats){
        .bytes = budget.bytes - budget.pending,
        .pending = budget.pending,
        .refused = mem->refused,
    };
    if (map) {
        st->regions = map->n;
        st->files = mem->files->len;
        for (unsigned i = 0; i < map->n; i++) {
            st->ram += map->region[i].hva ? map->region[i].size : 0;
        }
    }
}
