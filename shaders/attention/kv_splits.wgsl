// Division of a row's visible keys [first, end) into at most params.splits splits of `length` keys. With CROSS, the
// keys are another sequence's.
struct Splits {
    first: u32,
    end: u32,
    length: u32,
    count: u32,
}

#import common/rows

fn splits_of(row: u32) -> Splits {
    var s: Splits;
#ifdef CROSS
    s.first = memory[row].x;
    s.end = memory[row].y;
#else
    s.end = row_position(row) + 1u;
    if (params.window > 0u) { s.first = s.end - min(s.end, params.window); }
#endif
    let keys = s.end - s.first;
    s.length = (keys + params.splits * TILE - 1u) / (params.splits * TILE) * TILE;
    s.count = (keys + s.length - 1u) / s.length;
    return s;
}
