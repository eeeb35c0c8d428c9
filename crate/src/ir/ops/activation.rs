//! Activation functions of several operations.

/// Activation functions. Codes match shaders/common/activation.wgsl.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// Identity.
    None = 0,
    /// x · sigmoid(x), also called swish.
    Silu = 1,
    /// GELU, tanh approximation.
    GeluTanh = 2,
    /// GELU, exact (error function).
    Gelu = 3,
    /// max(x, 0).
    Relu = 4,
    /// 1 / (1 + exp(-x)).
    Sigmoid = 5,
    /// tanh(x).
    Tanh = 6,
    /// max(x, 0)².
    Relu2 = 7,
    /// x · sigmoid(1.702 x).
    QuickGelu = 8,
}

impl Activation {
    /// Parses the name used in config.json (`hidden_act`).
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "silu" | "swish" => Self::Silu,
            "gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" => Self::GeluTanh,
            "gelu" => Self::Gelu,
            "relu" => Self::Relu,
            "relu2" => Self::Relu2,
            "quick_gelu" => Self::QuickGelu,
            "sigmoid" => Self::Sigmoid,
            "tanh" => Self::Tanh,
            "linear" => Self::None,
            _ => return None,
        })
    }

    /// Whether it changes its input.
    pub fn is_some(self) -> bool {
        self != Self::None
    }
}
