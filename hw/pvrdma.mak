# SPDX-License-Identifier: GPL-2.0-or-later
#
# The device set of the project's QEMU: machines and devices that a Linux guest
# with a pvrdma adapter needs, and little else.
CONFIG_I440FX=y
CONFIG_Q35=y
CONFIG_PCI_DEVICES=n
CONFIG_PVRDMA=y
CONFIG_VMXNET3_PCI=y
CONFIG_PCIE_PORT=y
CONFIG_PCI_TESTDEV=y
CONFIG_VIRTIO_PCI=y
CONFIG_VIRTIO_NET=y
CONFIG_VIRTIO_BLK=y
CONFIG_VIRTIO_SCSI=y
CONFIG_VIRTIO_SERIAL=y
CONFIG_VIRTIO_RNG=y
CONFIG_VIRTIO_BALLOON=y
CONFIG_SERIAL_ISA=y
CONFIG_ISA_DEBUG=y
CONFIG_VGA_PCI=y
# What the device refuses, warns of or survives, for its tests.
CONFIG_VTD=y
CONFIG_IVSHMEM_DEVICE=y
CONFIG_NVDIMM=y
