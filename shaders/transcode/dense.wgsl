// Rows of plain numbers to padded rows, converted to nearest even.
#import transcode/plain
#import transcode/number

fn bits_at(row: u32, k: u32) -> u32 {
    let i = row * params.cols + k;
    // Bits that need no conversion are copied: not even a NaN changes.
    if (FROM == TO) {
        return number_bits(i);
    }
    return to_bits(number(i));
}
