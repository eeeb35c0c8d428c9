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

fn activate(kind: u32, x: f32) -> f32 {
    switch kind {
        case 1u: { return x * sigmoid(x); }
        case 2u: { return 0.5 * x * (1.0 + safe_tanh(0.7978845608 * (x + 0.044715 * x * x * x))); }
        case 3u: { return 0.5 * x * (1.0 + erf(x * 0.70710678118)); }
        case 4u: { return max(x, 0.0); }
        case 5u: { return sigmoid(x); }
        case 6u: { return safe_tanh(x); }
        case 7u: { let r = max(x, 0.0); return r * r; }
        case 8u: { return x * sigmoid(1.702 * x); }
        default: { return x; }
    }
}
