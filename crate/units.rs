//! Lowers the browsers' subgroup matrix syntax (gpuweb's draft proposals/subgroup-matrix.md) to
//! WGSL that naga can parse, so that build.rs can validate these variants too.

/// Directives that browsers require before subgroup matrix code and that naga does not know.
const DIRECTIVES: [&str; 5] = [
    "enable subgroups;",
    "enable subgroup_matrix;",
    "enable chromium_experimental_subgroup_matrix;",
    "diagnostic(off, subgroup_matrix_uniformity);",
    "diagnostic(off, chromium.subgroup_matrix_uniformity);",
];

/// The kinds of matrices in operand order.
const MATRIX_KINDS: [&str; 3] = ["left", "right", "result"];

/// A declared matrix: alias name, component type, columns and rows.
struct MatrixAlias<'a> {
    name: &'a str,
    component: &'a str,
    size: [&'a str; 2],
}

/// Lowers a shader to WGSL for naga. A matrix becomes a struct of its elements; a load reads its
/// first element and a store writes it. naga then checks argument types and address spaces.
///
/// # Errors
/// Syntax that the draft does not define, wrong arguments, or matrices whose sizes or component
/// types do not match.
pub fn lower_matrix_dialect(source: &str) -> Result<String, String> {
    let mut out = String::with_capacity(source.len() + 1024);
    let mut matrices: [Option<MatrixAlias<'_>>; 3] = [None, None, None];
    for line in source.lines() {
        let fail = || format!("unknown subgroup matrix syntax: {line}");
        if DIRECTIVES.contains(&line) {
            continue;
        } else if line.starts_with("diagnostic(")
            || line.starts_with("enable ") && line != "enable f16;"
        {
            return Err(fail());
        } else if let Some((name, of)) = line.split_once("subgroup_matrix_") {
            let (kind, matrix) = parse_alias(name, of).ok_or_else(fail)?;
            out.push_str(&lower_alias(&matrix));
            matrices[kind] = Some(matrix);
        } else if let Some(at) = line.find("subgroupMatrix") {
            let [name, lists, rest] = split_call(&line[at..]).ok_or_else(fail)?;
            let result = matrices[2].as_ref();

            let said = lower_call(name, lists, result.map_or("", |m| m.name))
                .filter(|_| !rest.contains("subgroupMatrix"));
            out.push_str(&(line[..at].to_string() + &said.ok_or_else(fail)? + rest));
        } else {
            out.push_str(line);
        }
        out.push('\n');
    }
    let [Some(left), Some(right), Some(result)] = matrices else {
        return Err("a matmul needs one left, one right and one result matrix".into());
    };
    let [inner, rows] = left.size;
    let [columns, also_inner] = right.size;

    if inner != also_inner || result.size != [columns, rows] || left.component != right.component {
        return Err(
            "sizes or component types of the left, right and result matrices do not match".into(),
        );
    }
    let names = [left.name, right.name, result.name, result.name];
    out.push_str("fn matrix_place(at: u32, pitch: u32) -> u32 { return at + pitch; }\n");
    let [a, b, sum, found] = names;
    out.push_str(&format!(
        "fn matrix_product(a: {a}, b: {b}, sum: {sum}) -> {found} {{ return sum; }}\n"
    ));
    Ok(out)
}

/// Parses `alias Name = subgroup_matrix_kind<component, columns, rows>;`, split at the kind.
fn parse_alias<'a>(name: &'a str, of: &'a str) -> Option<(usize, MatrixAlias<'a>)> {
    let name = name
        .strip_prefix("alias ")?
        .trim()
        .strip_suffix('=')?
        .trim();
    let (kind, of) = of.strip_suffix(">;")?.split_once('<')?;
    let kind = MATRIX_KINDS.iter().position(|known| *known == kind)?;
    let [component, columns, rows] = split_list(of)[..] else {
        return None;
    };
    Some((
        kind,
        MatrixAlias {
            name,
            component,
            size: [columns, rows],
        },
    ))
}

fn lower_alias(matrix: &MatrixAlias<'_>) -> String {
    let MatrixAlias {
        name,
        component,
        size: [columns, rows],
    } = matrix;
    format!(
        "struct {name} {{ rows: array<array<{component}, {columns}>, {rows}> }}\n\
         fn {name}_loaded(first: {component}) -> {name} {{ var m: {name}; m.rows[0][0] = first; return m; }}\n\
         fn {name}_stored(m: {name}) -> {component} {{ return m.rows[0][0]; }}"
    )
}

/// Splits a call into the function name, its `<>` and `()` lists together, and the text after them.
fn split_call(text: &str) -> Option<[&str; 3]> {
    let mut depth = 0;
    let open = text.find(['<', '('])?;

    let end = text.find(|sign: char| {
        depth += i32::from(sign == '(') - i32::from(sign == ')');
        sign == ')' && depth == 0
    })?;
    Some([&text[..open], &text[open..=end], &text[end + 1..]])
}

/// Lowers a call to WGSL for naga; `result` is the alias of the result matrix.
fn lower_call(name: &str, lists: &str, result: &str) -> Option<String> {
    let (of, arguments) = match lists.strip_prefix('<') {
        Some(lists) => lists.split_once('>')?,
        None => ("", lists),
    };
    let of = split_list(of);
    let arguments = split_list(arguments.strip_prefix('(')?.strip_suffix(')')?);

    let lies = |how: &str| matches!(how, "row_major" | "col_major");
    match (name, &of[..], &arguments[..]) {
        ("subgroupMatrixLoad", [matrix, how], [from, at, pitch]) if lies(how) => Some(format!(
            "{matrix}_loaded((*{from})[matrix_place({at}, {pitch})])"
        )),
        ("subgroupMatrixStore", [how], [to, at, matrix, pitch]) if lies(how) => Some(format!(
            "(*{to})[matrix_place({at}, {pitch})] = {result}_stored({matrix})"
        )),
        ("subgroupMatrixMultiplyAccumulate", [""], [a, b, sum]) => {
            Some(format!("matrix_product({a}, {b}, {sum})"))
        }
        _ => None,
    }
}

/// Splits a list at the commas outside brackets.
fn split_list(list: &str) -> Vec<&str> {
    let mut depth = 0;

    list.split(|sign: char| {
        depth += i32::from("([".contains(sign)) - i32::from(")]".contains(sign));
        sign == ',' && depth == 0
    })
    .map(str::trim)
    .collect()
}

#[cfg(test)]
mod tests {
    use super::lower_matrix_dialect;
    use wgpu::naga::front::wgsl::parse_str;
    use wgpu::naga::valid::{Capabilities, ValidationFlags, Validator};

    const TEXT: &str = "enable f16;
enable subgroups;
enable subgroup_matrix;
diagnostic(off, subgroup_matrix_uniformity);
alias Left = subgroup_matrix_left<f16, 8, 16>;
alias Right = subgroup_matrix_right<f16, 4, 8>;
alias Sum = subgroup_matrix_result<f32, 4, 16>;
var<workgroup> tile: array<array<f16, 512>, 2>;
@group(0) @binding(0) var<storage, read_write> parts: array<f32>;
fn load_left(slice: u32) -> Left { return subgroupMatrixLoad<Left, row_major>(&tile[slice], 1u * 8, 16u); }
fn load_right(slice: u32) -> Right { return subgroupMatrixLoad<Right,col_major>(&tile[min(slice, 1u)], 8u, 16u); }
fn multiply(a: Left, b: Right, sum: Sum) -> Sum { return subgroupMatrixMultiplyAccumulate(a, b, sum); }
fn store(sum: Sum, at: u32) { subgroupMatrixStore<row_major>(&parts, at, sum, 16u); }
@compute @workgroup_size(32)
fn main() { store(multiply(load_left(0u), load_right(1u), Sum()), 0u); }
";

    fn validated(text: &str) -> Result<(), String> {
        let source = lower_matrix_dialect(text)?;
        let module = parse_str(&source).map_err(|e| e.emit_to_string(&source))?;
        let validated =
            Validator::new(ValidationFlags::all(), Capabilities::all()).validate(&module);
        validated.map(|_| ()).map_err(|e| e.emit_to_string(&source))
    }

    #[test]
    fn lowered_draft_syntax_is_valid() {
        validated(TEXT).unwrap();
        let chromium = TEXT.replace(
            "enable subgroup_matrix",
            "enable chromium_experimental_subgroup_matrix",
        );
        let chromium = chromium.replace("off, subgroup", "off, chromium.subgroup");
        assert_eq!(
            lower_matrix_dialect(&chromium).unwrap(),
            lower_matrix_dialect(TEXT).unwrap(),
            "both extension names lower to one source"
        );
    }

    #[test]
    fn wrong_syntax_or_arguments_are_errors() {
        for (right, wrong) in [
            // Syntax.
            ("enable subgroup_matrix", "enable subgroup_matrices"),
            (
                "diagnostic(off, subgroup_matrix_uniformity)",
                "diagnostic(off, matrix_uniformity)",
            ),
            ("subgroup_matrix_left", "subgroup_matrix_first"),
            ("subgroupMatrixLoad<Left", "subgroupMatrixRead<Left"),
            ("MultiplyAccumulate", "MultiplyAdd"),
            ("col_major", "column_major"),
            // Lists.
            ("<f16, 8, 16>", "<f16, 8>"),
            ("<Left, row_major>", "<Left>"),
            ("<row_major>", ""),
            ("(a, b, sum)", "(a, b)"),
            ("(&parts, at, sum, 16u)", "(&parts, sum, at, 16u)"),
            (
                "8u, 16u); }\nfn multiply",
                "8u, false, 16u); }\nfn multiply",
            ),
            // Sizes and components.
            ("right<f16, 4, 8>", "right<f16, 4, 4>"),
            ("result<f32, 4, 16>", "result<f32, 8, 16>"),
            ("right<f16, 4, 8>", "right<f32, 4, 8>"),
            ("left<f16, 8, 16>", "left<f16, SIDE, 16>"),
            // Kinds of arguments.
            ("(a, b, sum); }", "(b, a, sum); }"),
            ("(&tile[slice]", "(tile[slice]"),
            ("(&tile[slice]", "(&tile"),
            ("(&tile[slice]", "(&parts"),
            ("(&parts, at", "(&tile[0], at"),
            ("1u * 8", "1.0"),
            ("at, sum, 16u", "at, sum, 16.5"),
            ("Load<Left,", "Load<Right,"),
            ("read_write", "read"),
        ] {
            assert!(TEXT.contains(right), "{right}");
            assert!(
                validated(&TEXT.replace(right, wrong)).is_err(),
                "{wrong} instead of {right}"
            );
        }
    }
}
