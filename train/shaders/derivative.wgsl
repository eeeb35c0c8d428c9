// Derivatives of common/activation's functions, by the same codes.
fn derivative(kind: u32, x: f32) -> f32 {
    switch kind {
        case 1u: {
            let s = sigmoid(x);
            return s * (1.0 + x * (1.0 - s));
        }
        case 2u: {
            let t = safe_tanh(0.7978845608 * (x + 0.044715 * x * x * x));
            return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * 0.7978845608 * (1.0 + 0.134145 * x * x);
        }
        case 3u: {
            return 0.5 * (1.0 + erf(x * 0.70710678118)) + x * 0.3989422804 * exp(-min(0.5 * x * x, 80.0));
        }
        case 4u: { return step_at(x); }
        case 5u: {
            let s = sigmoid(x);
            return s * (1.0 - s);
        }
        case 6u: {
            let t = safe_tanh(x);
            return 1.0 - t * t;
        }
        case 7u: { return 2.0 * max(x, 0.0); }
        case 8u: {
            let s = sigmoid(1.702 * x);
            return s * (1.0 + 1.702 * x * (1.0 - s));
        }
        default: { return 1.0; }
    }
}

// 1 above zero, else 0: PyTorch's derivative of ReLU.
fn step_at(x: f32) -> f32 {
    if (x > 0.0) { return 1.0; }
    return 0.0;
}
