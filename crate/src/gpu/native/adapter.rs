//! Reads a wgpu adapter's capabilities and selects the limits and features to request.

use super::super::{Caps, DeviceOptions};
use crate::device::{MatrixDialect, SubgroupMatrix};
use std::rc::Rc;

/// The limits to request: the adapter's, or WebGPU's guaranteed minimum.
pub(super) fn limits_of(adapter: &wgpu::Adapter, options: &DeviceOptions) -> wgpu::Limits {
    if options.min_limits {
        wgpu::Limits::default().or_worse_values_from(&adapter.limits())
    } else {
        adapter.limits()
    }
}

pub(super) fn caps_of(adapter: &wgpu::Adapter, options: &DeviceOptions) -> Caps {
    let info = adapter.get_info();
    let limits = limits_of(adapter, options);
    let features = adapter.features();

    let f16 = features.contains(wgpu::Features::SHADER_F16);
    let subgroups = features.contains(wgpu::Features::SUBGROUP);

    let vendor = vendor_name(info.vendor);
    let lanes = (info.subgroup_min_size, info.subgroup_max_size);
    Caps {
        matrix: subgroup_matrix(adapter, lanes, &vendor)
            .filter(|_| options.matrix && options.f16 && options.subgroups),
        vendor,
        architecture: format!("{:?}", info.backend).to_lowercase(),
        description: format!("{} ({})", info.name, info.driver_info),
        f16: options.f16 && f16,
        subgroups: options.subgroups && subgroups,
        subgroup_size: lanes,
        timestamps: features.contains(wgpu::Features::TIMESTAMP_QUERY),
        max_buffer_size: options.limit_buffer_size(limits.max_buffer_size),
        max_binding_size: options.limit_buffer_size(limits.max_storage_buffer_binding_size),
        memory: None,
        estimated_memory: None,
        measured: Rc::default(),
        max_workgroup_storage: limits.max_compute_workgroup_storage_size,
        max_invocations: limits
            .max_compute_invocations_per_workgroup
            .min(limits.max_compute_workgroup_size_x),
        // naga or the driver emulates the instruction where the device lacks it.
        packed_dot: true,
        webkit: false,
        ios: false,
        software: info.device_type == wgpu::DeviceType::Cpu,
        gpu_kernels: options.gpu_kernels,
        agent: String::new(),
        tuned: options.tuning_table(),
        force: options.variant_override,
    }
}

/// The adapter's subgroup matrix support, as far as naga exposes it.
fn subgroup_matrix(
    adapter: &wgpu::Adapter,
    lanes: (u32, u32),
    vendor: &str,
) -> Option<SubgroupMatrix> {
    use wgpu::CooperativeScalarType::{F16, F32};
    let wanted = wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX
        | wgpu::Features::SHADER_F16
        | wgpu::Features::SUBGROUP;
    if !adapter.features().contains(wanted) {
        return None;
    }
    let listed = adapter
        .cooperative_matrix_properties()
        .into_iter()
        .filter_map(|p| match (p.ab_type, p.cr_type) {
            (factors @ (F16 | F32), F32) if p.m_size == p.n_size && p.n_size == p.k_size => {
                Some((p.m_size, factors == F16))
            }
            _ => None,
        });
    SubgroupMatrix::best(
        &listed.collect::<Vec<_>>(),
        lanes,
        vendor,
        MatrixDialect::Coop,
    )
}

/// Enables wgpu's experimental features, only for subgroup matrices.
#[allow(unsafe_code)]
pub(super) fn experimental(caps: &Caps) -> wgpu::ExperimentalFeatures {
    if caps.matrix.is_none() {
        return wgpu::ExperimentalFeatures::disabled();
    }
    // SAFETY: the shaders that use them are this crate's own, and every access is within bounds.
    unsafe { wgpu::ExperimentalFeatures::enabled() }
}

/// Maps a PCI vendor id to the name that browsers use.
fn vendor_name(id: u32) -> String {
    match id {
        0x10de => "nvidia".into(),
        0x1002 => "amd".into(),
        0x106b => "apple".into(),
        0x8086 => "intel".into(),
        0x5143 => "qualcomm".into(),
        0x13b5 => "arm".into(),
        _ => format!("{id:#06x}"),
    }
}
