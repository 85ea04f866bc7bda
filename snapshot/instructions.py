"""Which flags of /proc/cpuinfo stand for instructions that programs depend on (pure)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

# Properties of kernel, firmware or hypervisor, and what only a kernel can execute.
_OF_THE_MACHINE: Final = """
    vme de pse pae mce msr umip apic mtrr pge mca pat pse36 dts acpi ss ht tm pbe nx pdpe1gb lm
    hypervisor arch_perfmon pebs bts aperfmperf dtes64 monitor ds_cpl vmx smx svm est tm2 cid
    sdbg xtpr pdcm pcid dca x2apic tsc_deadline_timer cmp_legacy extapic cr8_legacy osvw ibs
    skinit wdt lwp topoext perfctr_core perfctr_nb perfctr_llc bpext ptsc mwaitx cpb ida arat
    epb pln pts dtherm hwp hwp_notify hwp_act_window hwp_epp hwp_pkg_req hfi hw_pstate
    proc_feedback avic amd_ibrs constant_tsc nonstop_tsc nonstop_tsc_s3 tsc_known_freq
    tsc_reliable tsc_adjust tsc_scale art xtopology amd_dcm up bus_lock_detect split_lock_detect
    user_shstk extd_apicid rapl smep smap invpcid invpcid_single pti intel_ppin amd_ppin cat_l2
    cat_l3 cdp_l2 cdp_l3 mba cqm cqm_llc cqm_mbm_local cqm_mbm_total cqm_occup_llc rdt_a
    intel_pt ept ept_ad vpid vnmi tpr_shadow flexpriority npt lbrv svm_lock nrip_save vmcb_clean
    flushbyasid decodeassists pausefilter pfthreshold v_vmsave_vmload vgif x2avic v_spec_ctrl
    sev sev_es sev_snp sme vmmcall la57 lam wbnoinvd pconfig tme sgx sgx_lc ibt arch_lbr
    arch_capabilities cpuid cpuid_fault overflow_recov succor smca fsrcs pks
"""
# What is done about faults of processors.
_MITIGATIONS: Final = """
    ssbd ibrs ibpb stibp ibrs_enhanced rsb_ctxsw retpoline virt_ssbd md_clear flush_l1d
    core_capabilities tsx_force_abort srbds_ctrl autoibrs rrsba ibpb_brtype sbpb srso_alias
    srso_no null_seg_clr_base no_nested_data_bp lfence_rdtsc
"""
# The instruction works without them, only slower.
_HINTS: Final = """
    erms fsrm fzrm fsrs fsrc rep_good nopl cldemote misalignsse
"""
NOT_INSTRUCTIONS: Final = frozenset((_OF_THE_MACHINE + _MITIGATIONS + _HINTS).split())
"""Names in /proc/cpuinfo that no program depends on. Everything unknown counts as an instruction."""


def instructions(flags: Iterable[str]) -> frozenset[str]:
    """Those processor flags that a program can depend on."""
    return frozenset(flags) - NOT_INSTRUCTIONS
