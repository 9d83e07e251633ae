//! Every figure of a report, those of the sources included, one a line (RFC 4180).

use super::model::{Document, Figure};
use crate::report::csv_field;

const HEAD: &str = "origin,part,section,system,case,value,unit,target,verdict,cpu_own_percent,\
                    cpu_machine_percent,cpu_kernel_percent,runs,missing";

/// The text of the file.
pub fn text(document: &Document) -> String {
    let mut text = format!("{HEAD}\n");
    for figure in &document.figures {
        text += &line(figure);
        text.push('\n');
    }
    text
}

fn line(figure: &Figure) -> String {
    let number = |value: Option<f64>| value.map_or(String::new(), |value| value.to_string());
    let runs: Vec<String> = figure.runs.iter().map(f64::to_string).collect();
    let fields = [
        figure.origin.to_owned(),
        figure.part.clone(),
        figure.section.clone(),
        figure.system.clone(),
        figure.case.clone(),
        number(figure.value),
        figure.unit.clone(),
        figure.target.clone(),
        figure.verdict.clone(),
        number(figure.cpu_own_percent),
        number(figure.cpu_machine_percent),
        number(figure.cpu_kernel_percent),
        runs.join(" "),
        figure.missing.clone(),
    ];
    fields.map(|field| csv_field(&field)).join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_a_field_a_column() {
        let figure = Figure {
            origin: "here",
            case: "a, b".into(),
            value: Some(0.5),
            runs: vec![0.25, 0.75],
            ..Figure::default()
        };
        let line = line(&figure);
        assert_eq!(line, "here,,,,\"a, b\",0.5,,,,,,,0.25 0.75,");
        assert_eq!(HEAD.matches(',').count() + 1, 14);
    }
}
