//! CPU reference of shaders/recurrent and shaders/norm/gated_norm: row-by-row recurrences in f64.
//! Follows transformers' `torch_recurrent_gated_delta_rule` and `mamba2_selective_state_update`.

/// Inputs of all rows and heads.
#[derive(Debug, Clone, Copy)]
pub struct RecurrentInputs<'a> {
    /// `[row][key_heads][key_dim]`.
    pub q: &'a [f32],
    /// `[row][key_heads][key_dim]`.
    pub k: &'a [f32],
    /// `[row][heads][value_dim]`.
    pub v: &'a [f32],
    /// `[row][heads]`: dt before its bias and softplus.
    pub a: &'a [f32],
    /// `[row][heads]`: beta before its sigmoid; unused by Mamba-2.
    pub b: &'a [f32],
}

/// A multi-head recurrence.
#[derive(Debug, Clone)]
pub struct RecurrentReference<'a> {
    /// Value heads.
    pub heads: usize,
    /// Heads of queries and keys.
    pub key_heads: usize,
    /// Consecutive heads that share a query and a key; 1 if they are interleaved.
    pub heads_per_key: usize,
    /// Columns of a key.
    pub key_dim: usize,
    /// Value columns per head.
    pub value_dim: usize,
    /// log(-rate) per head.
    pub log_rate: &'a [f32],
    /// Bias of dt per head.
    pub bias: &'a [f32],
    /// Skip scale per head (Mamba-2); None for the delta rule.
    pub skip_scale: Option<&'a [f32]>,
    /// Minimum and maximum dt of Mamba-2.
    pub limits: [f32; 2],
    /// Multiplies dt before its bias.
    pub dt_scale: f32,
}

impl RecurrentReference<'_> {
    /// Computes the output `[row][heads][value_dim]` and updates `memory`,
    /// `[heads][key_dim][value_dim]`.
    pub fn of(&self, rows: RecurrentInputs<'_>, memory: &mut [f64]) -> Vec<f32> {
        let count = rows.a.len() / self.heads;
        let mut out = Vec::with_capacity(rows.v.len());
        for row in 0..count {
            for head in 0..self.heads {
                out.extend(self.step(rows, row, head, memory));
            }
        }
        out
    }

    fn step(
        &self,
        rows: RecurrentInputs<'_>,
        row: usize,
        head: usize,
        memory: &mut [f64],
    ) -> Vec<f32> {
        let dk = self.key_dim;
        let dv = self.value_dim;

        let key_head = head / self.heads_per_key % self.key_heads;
        let at = (row * self.key_heads + key_head) * dk;
        let wide = |x: &[f32]| x.iter().map(|v| f64::from(*v)).collect::<Vec<_>>();
        let mut q = wide(&rows.q[at..at + dk]);
        let mut k = wide(&rows.k[at..at + dk]);

        let v = wide(&rows.v[(row * self.heads + head) * dv..][..dv]);
        let number = row * self.heads + head;
        let dt = (f64::from(rows.a[number]) * f64::from(self.dt_scale)
            + f64::from(self.bias[head]))
        .exp()
        .ln_1p();
        let dt = dt.clamp(f64::from(self.limits[0]), f64::from(self.limits[1]));
        let decay = (-f64::from(self.log_rate[head]).exp() * dt).exp();
        let own = &mut memory[head * dk * dv..][..dk * dv];
        own.iter_mut().for_each(|m| *m *= decay);
        let read = |own: &[f64], key: &[f64], c: usize| {
            (0..dk).map(|i| key[i] * own[i * dv + c]).sum::<f64>()
        };
        let fresh: Vec<f64> = if self.skip_scale.is_some() {
            v.iter().map(|v| v * dt).collect()
        } else {
            scale_to_length(&mut q, (dk as f64).powf(-0.5));
            scale_to_length(&mut k, 1.0);
            let beta = 1.0 / (1.0 + (-f64::from(rows.b[number])).exp());
            v.iter()
                .enumerate()
                .map(|(c, v)| beta * (v - read(own, &k, c)))
                .collect()
        };
        for i in 0..dk {
            for c in 0..dv {
                own[i * dv + c] += k[i] * fresh[c];
            }
        }
        let share = self.skip_scale.map_or(0.0, |s| f64::from(s[head]));
        (0..dv)
            .map(|c| (read(own, &q, c) + share * v[c]) as f32)
            .collect()
    }
}

/// Scales a vector to this length.
fn scale_to_length(x: &mut [f64], length: f64) {
    let factor = length / (x.iter().map(|v| v * v).sum::<f64>() + 1e-6).sqrt();
    x.iter_mut().for_each(|v| *v *= factor);
}

/// RMSNorm of groups of `cols` columns: `norm(x) · gain · silu(z)`, or with `first`
/// `norm(x · silu(z)) · gain`. The gain has the columns of one group or of a whole row.
pub fn gated_norm(
    x: &[f32],
    z: &[f32],
    gain: &[f32],
    cols: usize,
    eps: f32,
    first: bool,
) -> Vec<f32> {
    let silu = |v: f32| f64::from(v) / (1.0 + (-f64::from(v)).exp());
    let gated = |i: usize| f64::from(x[i]) * if first { silu(z[i]) } else { 1.0 };
    let run = |run: usize| {
        let own = run * cols..(run + 1) * cols;
        let square = own.clone().map(|i| gated(i).powi(2)).sum::<f64>() / cols as f64;
        let factor = 1.0 / (square + f64::from(eps)).sqrt();
        own.map(move |i| (i, factor))
    };

    (0..x.len() / cols)
        .flat_map(run)
        .map(|(i, factor): (usize, f64)| {
            (gated(i)
                * factor
                * f64::from(gain[i % gain.len()])
                * if first { 1.0 } else { silu(z[i]) }) as f32
        })
        .collect()
}
