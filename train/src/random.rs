//! Random numbers of a training, from its seed.

use jerboa::sample::philox::philox;

/// Returns the numbers below `count` in the order of an epoch.
pub fn shuffled(count: usize, seed: u64, epoch: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    for last in (1..count).rev() {
        let key = [seed as u32, (seed >> 32) as u32];
        let word = philox([last as u32, epoch as u32, 2, 0], key)[0];
        let other = (u64::from(word) * (last as u64 + 1)) >> 32;
        order.swap(last, other as usize);
    }
    order
}

/// Returns `count` numbers, uniform in plus or minus `bound`; `stream` tells tensors of one seed
/// apart.
pub fn uniform(count: usize, bound: f32, seed: u64, stream: usize) -> Vec<f32> {
    let key = [seed as u32, (seed >> 32) as u32];
    let blocks = 0..count.div_ceil(4);
    let mut values: Vec<f32> = blocks
        .flat_map(|block| philox([block as u32, stream as u32, 1, 0], key))
        .map(|word| ((word >> 8) as f32 / (1u32 << 23) as f32 - 1.0) * bound)
        .collect();
    values.truncate(count);
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_have_orders_of_their_own() {
        let first = shuffled(50, 7, 0);
        assert_eq!(first, shuffled(50, 7, 0));
        assert_ne!(first, shuffled(50, 7, 1));
        assert_ne!(first, shuffled(50, 8, 0));
        let mut sorted = first;
        sorted.sort_unstable();
        assert_eq!(sorted, (0..50).collect::<Vec<usize>>());
    }
}
