// Log decay of a head and factor of its new values, from a row's inputs. `gains` begins with each head's A (its log, or
// with `raw` the negative rate) and each head's bias of dt.

// log(1 + exp(x)); the series is used where 1 + u would lose digits of u.
fn softplus(x: f32) -> f32 {
    let u = exp(-min(abs(x), 80.0));
    var log1p = log(1.0 + u);
    if (u < 0.03) { log1p = u * (1.0 - u * (0.5 - u * (0.333333333 - u * 0.25))); }
    return max(x, 0.0) + log1p;
}

fn rates(row: u32, head: u32) -> vec2<f32> {
    let dt = softplus(a[params.a_offset + row * params.a_stride + head] * params.dt_scale + gains[params.heads + head]);
    var rate = gains[head];
    if (params.raw == 0u) { rate = -exp(clamp(rate, -80.0, 80.0)); }
#ifdef DELTA
    return vec2<f32>(rate * dt, 1.0 / (1.0 + exp(-clamp(b[params.b_offset + row * params.b_stride + head], -80.0, 80.0))));
#else
    let step = clamp(dt, params.dt_low, params.dt_high);
    return vec2<f32>(rate * step, step);
#endif
}
