//! Compiles the registry's kernels.

use super::{NativeGpu, Pipeline};
use crate::device::preprocess::{Access, BindingDecl};
use crate::device::registry::Shader;
use crate::{Error, Result};
use std::rc::Rc;

impl NativeGpu {
    /// Compiles a kernel, or returns it from the cache where caching is enabled.
    pub(super) fn compile_cached(&self, shader: &Shader) -> Result<Pipeline> {
        let Some(kept) = self.inner.kernel_cache.get() else {
            return self.compile(shader);
        };
        if let Some(found) = kept.borrow().get(&shader.text) {
            return Ok(found.clone());
        }
        let pipeline = self.compile(shader)?;
        kept.borrow_mut()
            .insert(shader.text.clone(), pipeline.clone());
        Ok(pipeline)
    }

    fn compile(&self, shader: &Shader) -> Result<Pipeline> {
        let device = &self.inner.device;
        let refused = |reason: String| Error::Kernel {
            kernel: shader.label.clone(),
            reason,
        };
        let scope = device.push_error_scope(wgpu::ErrorFilter::Validation);
        let module = create_trusted_module(
            device,
            wgpu::ShaderModuleDescriptor {
                label: Some(&shader.label),
                source: wgpu::ShaderSource::Wgsl(shader.text.as_str().into()),
            },
        );
        let entries: Vec<wgpu::BindGroupLayoutEntry> =
            shader.bindings.iter().map(layout_entry).collect();
        let layout = device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
            label: None,
            entries: &entries,
        });
        let pipeline_layout = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label: None,
            bind_group_layouts: &[Some(&layout)],
            immediate_size: 0,
        });
        let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(&shader.label),
            layout: Some(&pipeline_layout),
            module: &module,
            entry_point: Some("main"),
            compilation_options: Default::default(),
            cache: None,
        });
        if let Some(error) = pollster::block_on(scope.pop()) {
            return Err(self.inner.or_device_lost(refused(error.to_string())));
        }
        self.update_counts(|c| c.pipelines += 1);
        Ok(Pipeline(Rc::new((pipeline, layout))))
    }
}

/// Compiles without wgpu's loop counters, which prevent unrolling in drivers. On Vulkan GPUs it
/// also omits bounds checks: they prevent drivers from merging adjacent loads, which slows prefill
/// by 10 %.
#[allow(unsafe_code)]
fn create_trusted_module(
    device: &wgpu::Device,
    shader: wgpu::ShaderModuleDescriptor<'_>,
) -> wgpu::ShaderModule {
    let info = device.adapter_info();
    let bounds_checks =
        info.backend != wgpu::Backend::Vulkan || info.device_type == wgpu::DeviceType::Cpu;
    let checks = wgpu::ShaderRuntimeChecks {
        force_loop_bounding: false,
        bounds_checks,
        ..wgpu::ShaderRuntimeChecks::checked()
    };
    // SAFETY: only shaders of the registry come here; their loops end. They stay within workgroup
    // memory, which tests on software adapters check; for buffers Vulkan's devices have their own
    // checks, which wgpu asks for.
    unsafe { device.create_shader_module_trusted(shader, checks) }
}

fn layout_entry(decl: &BindingDecl) -> wgpu::BindGroupLayoutEntry {
    let ty = match decl.access {
        Access::Uniform => wgpu::BufferBindingType::Uniform,
        Access::Read => wgpu::BufferBindingType::Storage { read_only: true },
        Access::ReadWrite => wgpu::BufferBindingType::Storage { read_only: false },
    };
    wgpu::BindGroupLayoutEntry {
        binding: decl.binding,
        visibility: wgpu::ShaderStages::COMPUTE,
        ty: wgpu::BindingType::Buffer {
            ty,
            has_dynamic_offset: false,
            min_binding_size: None,
        },
        count: None,
    }
}
