# SPDX-License-Identifier: GPL-2.0-or-later
#
# Thin entry points over configure, meson and the build scripts; `make help`
# lists them.  The first call that builds configures with --install-deps, which
# installs missing packages as root or through sudo.  Run ./configure yourself
# first to choose otherwise: a later call configures again, with your options, if
# `configure` has changed.  `help`, `clean`, `distclean` and `install` never do.

BUILD ?= build
PYTHON ?= $(if $(wildcard /usr/bin/python3),/usr/bin/python3,python3)
FUZZ_SECONDS ?= 60

export PVRDMA_BUILD = $(abspath $(BUILD))

# Another clone, in another folder, finds in ccache what this one compiled.
export CCACHE_BASEDIR = $(CURDIR)
export CCACHE_NOHASHDIR = 1

# An included file that has a rule is made before anything else, so there is
# neither for what must not build.
ifneq ($(filter-out help clean distclean install,$(or $(MAKECMDGOALS),all)),)
$(BUILD)/config.mak: configure
	./configure $(if $(wildcard $(BUILD)/configure.args),--again,--install-deps) --builddir=$(BUILD)

include $(BUILD)/config.mak
else ifneq ($(filter install,$(MAKECMDGOALS)),)
-include $(BUILD)/config.mak
endif

.PHONY: all all-deb backend qemu qemu-full images guest guest-driver guest-provider deb demo demo-shell \
        demo-hosts demo-migrate demo-rnic check check-vm soak soak-quick fuzz conformance bench bench-vm \
        install clean distclean help
.DEFAULT_GOAL := all

# Side by side: each waits at times for downloads, for what it unpacks, or for a linker.
# What the others say after an error would hide it, so it is said again.
errors = $(BUILD)/errors
together = +@rm -f $(errors); PVRDMA_ERRORS=$(abspath $(errors)) $(MAKE) --no-print-directory \
    $(if $(filter -j% --jobserver%,$(MAKEFLAGS)),,-j4) backend qemu images guest || \
    { echo "== these failed:"; cat $(errors); exit 1; } >&2
failed = || { echo "make $@" >> "$${PVRDMA_ERRORS:-/dev/null}"; exit 1; }

all: $(BUILD)/config.mak
	$(together)

# The packages, after all: a goal that wants both does not start the parts twice.
all-deb: all
	packaging/build-deb.sh $(BUILD)

# Other goals may be building it in a make of their own, and ninja does not wait for another.
backend: $(BUILD)/config.mak
	@echo "== daemon, tools and test programs"
	flock $(BUILD)/config.mak ninja -C $(BUILD) $(failed)

qemu: $(BUILD)/config.mak
ifneq ($(WITH_QEMU),no)
	@echo "== QEMU with the pvrdma device (the first build takes minutes)"
	hw/build-qemu.sh --builddir=$(BUILD)/qemu $(if $(QEMU_SRC),--qemu-src=$(QEMU_SRC)) $(failed)
endif

# With the features and devices of a distribution's QEMU: what gets installed.
qemu-full: $(BUILD)/config.mak
ifneq ($(WITH_QEMU),no)
	@echo "== QEMU as it is installed (takes half an hour)"
	hw/build-qemu.sh --full --builddir=$(BUILD)/qemu $(if $(QEMU_SRC),--qemu-src=$(QEMU_SRC))
endif

images: $(BUILD)/config.mak
ifneq ($(WITH_IMAGES),no)
	@echo "== guest image"
	images/build-image.sh $(BUILD)/images $(failed)
endif

guest: guest-driver guest-provider

guest-driver: images
ifneq ($(WITH_IMAGES),no)
	@echo "== guest driver"
	guest-driver/build.sh $(BUILD) $(failed)
endif

guest-provider: $(BUILD)/config.mak
ifneq ($(WITH_IMAGES),no)
	@echo "== guest provider"
	guest-provider/build.sh --builddir=$(BUILD) $(failed)
	guest-provider/fetch-runtime.sh $(BUILD) $(failed)
endif

deb: guest
	packaging/build-deb.sh $(BUILD)

demo: all
	$(PYTHON) tests/vm/demo.py

demo-shell: all
	$(PYTHON) tests/vm/demo.py --shell

demo-hosts: all
	$(PYTHON) tests/vm/demo_hosts.py

demo-migrate: all
	$(PYTHON) tests/vm/demo_migrate.py

# DEVICE=mlx5_0 takes that NIC of this machine and starts no guest, ADDRESS=IP says which port.
demo-rnic: $(if $(DEVICE),backend,all)
	$(PYTHON) tests/l1/demo_rnic.py $(if $(DEVICE),--device $(DEVICE)) $(if $(ADDRESS),--address $(ADDRESS))

check: all-deb
	$(PYTHON) tests/run-check.py --builddir=$(BUILD)

check-vm: all-deb
	pytest-3 tests/vm tests/l1

# SOAK="--factor 30 rounds mutants-1" chooses how much and what.
soak: all-deb
	$(PYTHON) tests/soak.py --builddir=$(BUILD) $(SOAK)

soak-quick: all-deb
	$(PYTHON) tests/soak.py --builddir=$(BUILD) $(or $(SHARD),--quick)

# CONFORMANCE="--stock --only 'perftest: ' programs" chooses what.
conformance: all
	$(PYTHON) tests/vm/conformance.py $(CONFORMANCE)

fuzz: $(BUILD)/config.mak
	BUILDDIR=$(abspath $(BUILD))-fuzz tests/fuzz/run.sh $(FUZZ_SECONDS)

bench: backend
	meson test -C $(BUILD) --no-rebuild --benchmark --verbose

bench-vm: all
	$(PYTHON) tests/vm/bench.py

# Often run as root, so it builds and fetches nothing.
install:
	@[ -x $(BUILD)/backend/pvrdmad ] || \
	    { echo "nothing to install in $(BUILD): run 'make backend qemu-full' first" >&2; exit 1; }
ifneq ($(WITH_QEMU),no)
	@[ -x $(BUILD)/qemu/full/qemu-system-x86_64 ] || \
	    { echo "no QEMU to install: run 'make qemu-full' first; the one of 'make qemu'" \
	           "is trimmed for tests" >&2; exit 1; }
endif
	meson install -C $(BUILD) --no-rebuild
ifneq ($(WITH_QEMU),no)
	install -D -m 755 $(BUILD)/qemu/full/qemu-system-x86_64 \
	    "$(DESTDIR)$(PREFIX)/libexec/pvrdma/qemu-system-x86_64"
endif

clean:
	-[ ! -f $(BUILD)/build.ninja ] || ninja -C $(BUILD) -t clean
	rm -rf $(BUILD)/vm-logs $(BUILD)/check-logs $(BUILD)/templates* $(BUILD)/demo-shell $(BUILD)/check-summary \
	    $(BUILD)-asan $(BUILD)-tsan $(BUILD)-fuzz $(BUILD)-mutants $(BUILD)-hw-asan \
	    $(BUILD)-debian13

distclean: clean
	rm -rf $(BUILD)

help:
	@echo "make all          build daemon and tools, QEMU with the device, guest image,"
	@echo "                  guest driver and provider"
	@echo "make deb          Debian packages of guest driver and provider, in $(BUILD)/deb"
	@echo "make demo         two guests exchange RDMA traffic; ends with a table of"
	@echo "                  figures: our guest parts, the stock ones, soft-RoCE"
	@echo "make demo-shell   leave both guests up with a console each"
	@echo "make demo-hosts   two guests on two hosts, network namespaces of this one:"
	@echo "                  our parts over TCP, soft-RoCE, siw; as root"
	@echo "make demo-migrate two of three guests move to a second host and back in the"
	@echo "                  middle of traffic; shows each second and the cost; as root"
	@echo "make demo-rnic    native verbs beside the paths between two VMs, on a host (a guest)"
	@echo "                  with soft-RoCE, then traffic while its link goes down and up;"
	@echo "                  DEVICE=NAME: this machine's NIC instead"
	@echo "make check        the core of the tests, then those shards of soak that are due and"
	@echo "                  fit into BUDGET=28 minutes; ends with 'N passed, N failed, N"
	@echo "                  skipped'; a shard that is due and does not fit is skipped"
	@echo "make check-vm     only the core's tests that have guests"
	@echo "make soak         all shards, hours of it: rare pairs of parts, many rounds,"
	@echo "                  sanitizers, checks taken out one by one, Debian 13, guests with a"
	@echo "                  debugging kernel, libvirt; tests/soak.py --list shows them and"
	@echo "                  when each ran (tests/soak.ledger), SOAK='NAME NAME' chooses"
	@echo "make soak-quick   the shard that ran longest ago, or SHARD=NAME"
	@echo "make conformance  other people's RDMA programs and suites on the device, beside"
	@echo "                  soft-RoCE; CONFORMANCE=-h, tables in $(BUILD)/conformance"
	@echo "make fuzz         fuzz each target for FUZZ_SECONDS=$(FUZZ_SECONDS) seconds"
	@echo "make bench        benchmarks against peers measured in the same run"
	@echo "make bench-vm     guests with our parts against soft-RoCE, and as root also"
	@echo "                  against it and siw between two hosts, with the aims"
	@echo "make qemu-full    QEMU with all features and devices, for make install"
	@echo "make install      install what was built below the prefix (DESTDIR works)"
	@echo "make clean        remove compiled files; 'make distclean' removes $(BUILD)/"
	@echo
	@echo "BUILD=DIR chooses the build folder, ./configure --help shows the options."
