# SPDX-License-Identifier: GPL-2.0-or-later
"""What of libfabric's own tests, fabtests, is run: (provider, command) each.

It is what its runfabtests.sh runs as `quick` for connected endpoints of the provider
verbs, and for reliable datagrams by ofi_rxm on top of it, without what fabtests' own
exclude files for the two take out.  Such a test checks the data itself (-v) or only that
all completes.  Where a test finds that the provider lacks what it is about, it ends with
ENODATA or ENOSYS, which is no failure.
"""

VERBS = 'verbs'
RXM = 'verbs;ofi_rxm'
# Exit status of a test that has nothing to test.
NOT_OFFERED = (61, 38)

# Of one side.
UNIT = ('fi_getinfo_test -s {own} {own}', 'fi_dom_test -n 2', 'fi_eq_test', 'fi_cq_test',
        'fi_mr_test', 'fi_cntr_test')

MSG = ['fi_cm_data', 'fi_cq_data -e msg -o senddata', 'fi_cq_data -e msg -o writedata',
       'fi_msg', 'fi_msg_epoll', 'fi_msg_sockets',
       'fi_shared_ctx -e msg --no-tx-shared-ctx', 'fi_inject_test -A inject -v',
       'fi_flood -e msg -v -T 1', 'fi_msg_pingpong -I 5', 'fi_msg_pingpong -I 5 -v',
       'fi_msg_bw -I 5', 'fi_msg_bw -I 5 -v', 'fi_rma_bw -e msg -o write -I 5',
       'fi_rma_bw -e msg -o read -I 5', 'fi_rma_bw -e msg -o writedata -I 5']
MSG += ['fi_multi_ep -e msg -v' + more for more in
        (' -A', ' -Q', ' -A -Q', ' --threading completion')]

RDM = ['fi_av_xfer -e rdm', 'fi_cq_data -e rdm -o senddata',
       'fi_cq_data -e rdm -o writedata', 'fi_rdm', 'fi_rdm -U', 'fi_rdm_tagged_peek',
       'fi_multi_ep -e rdm -v -A', 'fi_recv_cancel -e rdm -V',
       'fi_unexpected_msg -e rdm -I 10 -v', 'fi_inject_test -A inject -v',
       'fi_inject_test -A inj_complete -v', 'fi_flood -e rdm -v -T 1',
       'fi_rdm_multi_client -C 10 -I 5', 'fi_rma_bw -e rdm -o write -I 5',
       'fi_rma_bw -e rdm -o read -I 5', 'fi_rma_bw -e rdm -o writedata -I 5',
       'fi_rdm_cntr_pingpong -I 5', 'fi_multi_recv -e rdm -I 5', 'fi_rdm_pingpong -I 5 -v',
       'fi_rdm_tagged_pingpong -I 5', 'fi_rdm_tagged_pingpong -I 5 -v',
       'fi_rdm_tagged_bw -I 5', 'fi_rdm_tagged_bw -I 5 -v']

ONE_SIDED = [(VERBS, words) for words in UNIT]
PAIRS = [(VERBS, words) for words in MSG] + [(RXM, words) for words in RDM]
