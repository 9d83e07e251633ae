//! A report as Markdown: the same without bars, whose figures are in its tables; lines become
//! tables.

use super::model::{Cell, Chart, Charts, Document, Factors, Grid, Item, number};
use std::fmt::Write as _;

/// The text of the file.
pub fn text(document: &Document) -> String {
    let mut text = format!("# {}\n", document.title);
    document.glance.iter().for_each(|one| text += &item(one));
    for line in &document.lead {
        let _ = write!(text, "\n{line}\n");
    }
    for section in &document.sections {
        let _ = write!(text, "\n## {}\n", section.title);
        section.items.iter().for_each(|one| text += &item(one));
    }
    text
}

fn item(item: &Item) -> String {
    match item {
        Item::Text(text) => format!("\n{text}\n"),
        Item::Heading(text) => format!("\n### {text}\n"),
        Item::Grid(table) => grid(table),
        Item::Charts(group) => charts(group),
        Item::Factors(all) => factors(all),
        Item::Verbatim(title, text) => format!("\n{title}:\n\n```\n{text}\n```\n"),
        Item::Notes(notes) => {
            let note = |(about, text): &(String, String)| format!("- {about}: {text}\n");
            format!("\n{}", notes.iter().map(note).collect::<String>())
        }
        Item::More(title, items) => {
            let inside: String = items.iter().map(self::item).collect();
            format!("\n<details><summary>{title}</summary>\n{inside}\n</details>\n")
        }
    }
}

fn grid(grid: &Grid) -> String {
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let mut text = format!("\n**{}**\n\n", grid.caption);
    text += &line(grid.head.iter().map(|head| escaped(head)).collect());
    text += &format!("|{}\n", "---|".repeat(grid.head.len()));
    for row in &grid.rows {
        let cell = |cell: &Cell| match cell {
            Cell::Verdict(false) => "**short**".to_owned(),
            Cell::Title(text) => format!("**{}**", escaped(text)),
            other => escaped(&other.shown()),
        };
        text += &line(row.iter().map(cell).collect());
    }
    text
}

fn factors(all: &Factors) -> String {
    let mut table = Grid::new(all.caption.clone(), &["job", "beside", "times as good"]);
    for one in &all.factors {
        let row = [Cell::text(&one.what), Cell::text(&one.beside), Cell::Number(one.factor)];
        table.rows.push(row.into());
    }
    grid(&table)
}

/// Escapes the border of a cell.
fn escaped(text: &str) -> String {
    text.replace('|', "\\|")
}

/// A table for each chart, with a row for each line.
fn charts(group: &Charts) -> String {
    let mut text = String::new();
    for chart in &group.charts {
        let Chart::Lines(lines) = chart else { continue };
        // A course in time has too many columns.
        if lines.places.len() > 16 {
            continue;
        }
        let caption = match &lines.unit[..] {
            "" => lines.title.clone(),
            unit => format!("{}, {unit}", lines.title),
        };
        let mut table = Grid::new(caption, &[""]);
        table.head.extend(lines.places.iter().cloned());
        for (line, points) in group.legend.iter().zip(&lines.lines) {
            let cells = points.iter().map(|point| match point {
                Some(value) => Cell::Text(number(*value)),
                None => Cell::None,
            });
            table.rows.push(std::iter::once(Cell::text(&line.name)).chain(cells).collect());
        }
        text += &grid(&table);
    }
    if text.is_empty() {
        return text;
    }
    format!("\n<details><summary>{}</summary>\n{text}\n</details>\n", group.caption)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Line, Lines};
    use crate::summary::model::Section;

    #[test]
    fn tables_have_as_many_cells_as_columns() {
        let mut table = Grid::new("one", &["a", "b|c"]);
        table.rows.push(vec![Cell::text("x|y"), Cell::Verdict(false)]);
        let lines = Lines {
            title: "read".into(),
            places: vec!["4K".into(), "8K".into()],
            lines: vec![vec![Some(1500.0), None]],
            ..Lines::default()
        };
        let legend = vec![Line::new("ours")];
        let group = Charts { caption: "c".into(), legend, charts: vec![Chart::Lines(lines)] };
        let items = vec![Item::Grid(table), Item::Charts(group)];
        let section = Section { id: String::new(), title: "s".into(), items };
        let document = Document { sections: vec![section], ..Document::default() };
        let text = text(&document);
        assert!(text.contains("| a | b\\|c |\n|---|---|\n| x\\|y | **short** |\n"), "{text}");
        assert!(text.contains("|  | 4K | 8K |\n|---|---|---|\n| ours | 1500 | – |\n"), "{text}");
    }
}
