// Activation functions by code: 0 none, 1 SiLU, 2 GELU (tanh), 3 GELU (erf), 4 ReLU, 5 sigmoid, 6 tanh, 7 ReLU², 8 GELU
// (sigmoid). Arguments of exp and tanh are clamped: Metal's fast math turns their overflow into NaN.
fn sigmoid(x: f32) -> f32 {
    return 1.0 / (1.0 + exp(-clamp(x, -80.0, 80.0)));
}

fn safe_tanh(x: f32) -> f32 {
    return tanh(clamp(x, -15.0, 15.0));
}

// Abramowitz and Stegun 7.1.26, error 1.5e-7; summed from the small terms up.
fn erf(x: f32) -> f32 {
    let a = abs(x);
    let t = 1.0 / (1.0 + 0.3275911 * a);
    let poly = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))));
    return sign(x) * (1.0 - poly * exp(-min(a * a, 80.0)));
}

fn silu(x: f32) -> f32 {
    return x * sigmoid(x);
}

fn gelu_tanh(x: f32) -> f32 {
    return 0.5 * x * (1.0 + safe_tanh(0.7978845608 * (x + 0.044715 * x * x * x)));
}

fn gelu_erf(x: f32) -> f32 {
    return 0.5 * x * (1.0 + erf(x * 0.70710678118));
}

fn relu(x: f32) -> f32 {
    return max(x, 0.0);
}

fn relu_squared(x: f32) -> f32 {
    return relu(x) * relu(x);
}

fn gelu_sigmoid(x: f32) -> f32 {
    return x * sigmoid(1.702 * x);
}

fn activate(kind: u32, x: f32) -> f32 {
    switch kind {
        case 1u: { return silu(x); }
        case 2u: { return gelu_tanh(x); }
        case 3u: { return gelu_erf(x); }
        case 4u: { return relu(x); }
        case 5u: { return sigmoid(x); }
        case 6u: { return safe_tanh(x); }
        case 7u: { return relu_squared(x); }
        case 8u: { return gelu_sigmoid(x); }
        default: { return x; }
    }
}
