// Numbers of an update that change from step to step.
struct Hyper {
    // Multiplies the gradient of each label's loss: 1 / the labels of all micro-batches.
    loss_scale: f32,
    learning_rate: f32,
    // Added to or taken from the weights, see update.wgsl.
    weight_decay: f32,
    // 1 - beta1^t and 1 - beta2^t of AdamW's step t.
    correction1: f32,
    correction2: f32,
    // Largest norm of all gradients; 0 for any.
    max_norm: f32,
}
@group(0) @binding(7) var<storage, read> hyper: Hyper;
