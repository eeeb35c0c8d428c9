//! Activations and their derivatives.

use jerboa::ir::Activation;

const ROOT_2_PI: f64 = 0.797_884_560_802_865_4;

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// The error function, by its series or its continued fraction.
fn erf(x: f64) -> f64 {
    let a = x.abs();
    if a < 3.0 {
        let mut term = a;
        let mut sum = a;
        for n in 1..200 {
            term *= -a * a / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        return x.signum() * sum * std::f64::consts::FRAC_2_SQRT_PI;
    }
    let mut fraction = a;
    for n in (1..60).rev() {
        fraction = a + f64::from(n) / 2.0 / fraction;
    }
    let tail = (-a * a).exp() / fraction / std::f64::consts::PI.sqrt();
    x.signum() * (1.0 - tail)
}

/// Returns `act(x)`.
pub fn activate(act: Activation, x: f64) -> f64 {
    match act {
        Activation::None => x,
        Activation::Silu => x * sigmoid(x),
        Activation::GeluTanh => 0.5 * x * (1.0 + (ROOT_2_PI * (x + 0.044715 * x.powi(3))).tanh()),
        Activation::Gelu => 0.5 * x * (1.0 + erf(x * std::f64::consts::FRAC_1_SQRT_2)),
        Activation::Relu => x.max(0.0),
        Activation::Sigmoid => sigmoid(x),
        Activation::Tanh => x.tanh(),
        Activation::Relu2 => x.max(0.0).powi(2),
        Activation::QuickGelu => x * sigmoid(1.702 * x),
    }
}

/// Returns `act'(x)`.
pub fn derivative(act: Activation, x: f64) -> f64 {
    match act {
        Activation::None => 1.0,
        Activation::Silu => {
            let s = sigmoid(x);
            s * (1.0 + x * (1.0 - s))
        }
        Activation::GeluTanh => {
            let t = (ROOT_2_PI * (x + 0.044715 * x.powi(3))).tanh();
            let inner = ROOT_2_PI * (1.0 + 3.0 * 0.044715 * x * x);
            0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * inner
        }
        Activation::Gelu => {
            let density = (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt();
            0.5 * (1.0 + erf(x * std::f64::consts::FRAC_1_SQRT_2)) + x * density
        }
        Activation::Relu => f64::from(u8::from(x > 0.0)),
        Activation::Sigmoid => sigmoid(x) * (1.0 - sigmoid(x)),
        Activation::Tanh => 1.0 - x.tanh().powi(2),
        Activation::Relu2 => 2.0 * x.max(0.0),
        Activation::QuickGelu => {
            let s = sigmoid(1.702 * x);
            s * (1.0 + 1.702 * x * (1.0 - s))
        }
    }
}
