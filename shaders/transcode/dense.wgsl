// Converts dense rows to padded rows, rounding to nearest even.
#import transcode/plain
#import transcode/number

fn bits_at(row: u32, k: u32) -> u32 {
    let i = row * params.cols + k;
    // Equal types are copied bit for bit, including NaN.
    if (FROM == TO) {
        return number_bits(i);
    }
    return to_bits(number(i));
}
