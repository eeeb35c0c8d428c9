//! The device through the browser's WebGPU.
