//! A report as one self-contained HTML file: no script, no external resources.
//!
//! Invariants: all text is escaped; content that may be wider than the page scrolls in its own box.

use super::model::{
    Bars, Cell, Chart, Charts, Document, Factor, Factors, Grid, Item, Section, number,
};
use crate::report::Line;
use crate::report::lines::{class, direction, escaped, mark, quoted, scaled, styles, svg};
use std::fmt::Write as _;

const STYLE: &str = include_str!("style.css");
/// Length in letters from which on cells get a minimal width.
const LONG: usize = 24;
/// Columns up to which a table has no need to scroll on a narrow screen.
const CARDS: usize = 6;

/// The text of the file.
pub fn page(document: &Document) -> String {
    let title = escaped(&document.title);
    let mut text = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>{title}</title>\n\
         <style>\n{STYLE}</style>\n</head>\n<body>\n<header>\n<h1>{title}</h1>\n"
    );
    document.glance.iter().for_each(|one| text += &item(one));
    for line in &document.lead {
        let _ = writeln!(text, "<p class=\"lead\">{}</p>", marked(line));
    }
    text += "</header>\n<nav aria-label=\"Sections\"><ul>\n";
    for Section { id, title, .. } in &document.sections {
        let _ = writeln!(text, "<li><a href=\"#{}\">{}</a></li>", quoted(id), escaped(title));
    }
    text += "</ul></nav>\n<main>\n";
    for section in &document.sections {
        let (id, title) = (quoted(&section.id), escaped(&section.title));
        let _ = writeln!(text, "<section>\n<h2 id=\"{id}\">{title}</h2>");
        section.items.iter().for_each(|one| text += &item(one));
        text += "</section>\n";
    }
    text + "</main>\n</body>\n</html>\n"
}

fn item(item: &Item) -> String {
    match item {
        Item::Text(text) => format!("<p>{}</p>\n", marked(text)),
        Item::Heading(text) => format!("<h3>{}</h3>\n", marked(text)),
        Item::Grid(table) => grid(table),
        Item::Charts(group) => charts(group),
        Item::Factors(all) => factors(all),
        Item::Verbatim(title, text) => {
            let (name, title) = (quoted(title), escaped(title));
            let text = escaped(text);
            format!("<p>{title}</p>\n{}<pre>{text}</pre></div>\n", scroll(&name))
        }
        Item::Notes(notes) => {
            let note = |(about, text): &(String, String)| {
                format!("<dt>{}</dt><dd>{}</dd>\n", marked(about), marked(text))
            };
            format!("<dl>\n{}</dl>\n", notes.iter().map(note).collect::<String>())
        }
        Item::More(title, items) => {
            let inside: String = items.iter().map(self::item).collect();
            format!("<details><summary>{}</summary>\n{inside}</details>\n", marked(title))
        }
    }
}

/// A box that scrolls on its own, also by keys.
fn scroll(name: &str) -> String {
    format!("<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{name}\">")
}

fn grid(grid: &Grid) -> String {
    let numbers: Vec<bool> = (0..grid.head.len())
        .map(|column| {
            let of = |row: &Vec<Cell>| matches!(row.get(column), Some(Cell::Number(_)));
            grid.rows.iter().any(of)
        })
        .collect();
    let mut text = scroll(&quoted(&grid.caption));
    // Few columns become lines below each other on a narrow screen.
    let cards = if grid.head.len() <= CARDS { " class=\"cards\"" } else { "" };
    let _ = write!(text, "<table{cards}>\n<caption>{}</caption>\n<tr>", marked(&grid.caption));
    for (head, number) in grid.head.iter().zip(&numbers) {
        let class = if *number { " class=\"n\"" } else { "" };
        let _ = write!(text, "<th scope=\"col\"{class}>{}</th>", marked(head));
    }
    text += "</tr>\n";
    for row in &grid.rows {
        text += "<tr>";
        for ((cell, number), head) in row.iter().zip(&numbers).zip(&grid.head) {
            let shown = cell.shown();
            let class = match cell {
                Cell::Verdict(true) => " class=\"met\"",
                Cell::Verdict(false) => " class=\"short\"",
                Cell::Title(_) => " class=\"title\"",
                Cell::Number(_) | Cell::None if *number => " class=\"n\"",
                Cell::Text(text) if text.chars().count() > LONG => " class=\"w\"",
                _ => "",
            };
            let label = match (cards, &head[..]) {
                ("", _) | (_, "") => String::new(),
                (_, head) => format!(" data-h=\"{}\"", quoted(head)),
            };
            let _ = write!(text, "<td{class}{label}>{}</td>", marked(&shown));
        }
        text += "</tr>\n";
    }
    text + "</table></div>\n"
}

fn charts(group: &Charts) -> String {
    let mut text = match &group.caption[..] {
        "" => String::new(),
        caption => format!("<p class=\"about\">{}</p>\n", marked(caption)),
    };
    if !group.legend.is_empty() {
        text += "<ul class=\"legend\">\n";
        for (Line { name, .. }, style) in group.legend.iter().zip(styles(&group.legend)) {
            let _ = writeln!(
                text,
                "<li><svg viewBox=\"0 0 30 12\" aria-hidden=\"true\"><g class=\"{}\">\
                 <path class=\"line\" d=\"M1 6h28\"/>{}</g></svg>{}</li>",
                style.class,
                mark(style.mark, 15.0, 6.0),
                escaped(name)
            );
        }
        text += "</ul>\n";
    }
    text += "<div class=\"charts\">\n";
    for chart in &group.charts {
        text += "<figure>";
        match chart {
            Chart::Lines(lines) => {
                let scale = lines.is_logarithmic().then_some("logarithmic scale");
                let notes = [direction(&lines.unit), scale].into_iter().flatten();
                text += &caption(&lines.heading(), &notes.collect::<Vec<_>>().join(", "));
                text += &svg(lines, &group.legend);
            }
            Chart::Bars(all) => {
                let most = all.bars.iter().map(|bar| bar.value).fold(0.0, f64::max);
                let (by, unit) = scaled(&all.unit, most);
                let notes = [Some(&unit[..]), direction(&all.unit)].into_iter().flatten();
                let notes: Vec<&str> = notes.filter(|note| !note.is_empty()).collect();
                text += &caption(&all.title, &notes.join(", "));
                text += &bars(all, by);
            }
        }
        text += "</figure>\n";
    }
    text + "</div>\n"
}

fn caption(title: &str, note: &str) -> String {
    let note = if note.is_empty() { String::new() } else { format!(" <small>{note}</small>") };
    format!("<figcaption>{}{note}</figcaption>\n", marked(title))
}

/// Bars to both sides of 1, on a logarithmic scale of at least a half to double.
fn factors(all: &Factors) -> String {
    let far = all.factors.iter().map(|one| one.factor.log2().abs()).fold(1.0, f64::max);
    let note = "× as good; right of the line: better; logarithmic scale";
    let mut text = format!("<figure class=\"glance\">{}", caption(&all.caption, note));
    text += "<ul class=\"factors\">\n";
    for Factor { what, beside, factor } in &all.factors {
        let half = 50.0 * factor.log2() / far;
        let (left, side) = if half < 0.0 { (50.0 + half, "s1") } else { (50.0, "s0") };
        let _ = writeln!(
            text,
            "<li class=\"{side}\"><span class=\"name\">{} <small>{}</small></span>\
             <span class=\"bar\"><i style=\"left:{left:.1}%;width:{:.1}%\"></i></span>\
             <span class=\"value\">{}</span></li>",
            escaped(what),
            escaped(beside),
            half.abs(),
            number(*factor)
        );
    }
    text + "</ul></figure>\n"
}

/// Bars on one scale that begins at 0, each below its name and value.
fn bars(all: &Bars, by: f64) -> String {
    let most = all.bars.iter().map(|bar| bar.value).fold(f64::MIN_POSITIVE, f64::max);
    let mut text = String::from("<ul class=\"bars\">\n");
    let mut line = 0;
    for bar in &all.bars {
        let percent = (100.0 * bar.value / most).clamp(0.0, 100.0);
        let note = match &bar.note[..] {
            "" => String::new(),
            note => format!(" <small>{}</small>", escaped(note)),
        };
        let _ = writeln!(
            text,
            "<li class=\"{}\"><span class=\"name\">{}</span> \
             <span class=\"value\">{}</span>{note}\
             <span class=\"bar\"><i style=\"width:{percent:.1}%\"></i></span></li>",
            class(if bar.source { 0 } else { line }, bar.source),
            escaped(&bar.name),
            number(bar.value / by)
        );
        line += usize::from(!bar.source);
    }
    text + "</ul>\n"
}

/// Text with backquoted `code`.
fn marked(text: &str) -> String {
    let mut out = String::new();
    for (n, part) in text.split('`').enumerate() {
        let part = escaped(part);
        // A backquote without a partner is no markup.
        if n % 2 == 1 && text.matches('`').count().is_multiple_of(2) {
            let _ = write!(out, "<code>{part}</code>");
        } else {
            out += &part;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::lines::PALETTE;

    #[test]
    fn text_of_others_can_not_become_markup() {
        let evil = "<script>\"&`x`".to_owned();
        let mut grid = Grid::new(evil.clone(), &["<b>"]);
        grid.rows.push(vec![Cell::text(&evil)]);
        let bars = Bars {
            title: evil.clone(),
            unit: String::new(),
            bars: vec![super::super::model::Bar { name: evil.clone(), ..Default::default() }],
        };
        let group = Charts {
            caption: evil.clone(),
            legend: vec![Line { name: evil.clone(), source: true }],
            charts: vec![Chart::Bars(bars)],
        };
        let items = vec![
            Item::Text(evil.clone()),
            Item::Grid(grid),
            Item::Factors(Factors {
                caption: evil.clone(),
                factors: vec![Factor { what: evil.clone(), beside: evil.clone(), factor: 2.0 }],
            }),
            Item::Charts(group),
            Item::Verbatim(evil.clone(), evil.clone()),
            Item::Notes(vec![(evil.clone(), evil.clone())]),
            Item::More(evil.clone(), vec![Item::Heading(evil.clone())]),
        ];
        let section = Section { id: "a\"".into(), title: evil.clone(), items };
        let document = Document { title: evil, sections: vec![section], ..Document::default() };
        let page = page(&document);
        assert!(!page.contains("<script") && !page.contains("<b>"), "{page}");
        assert!(page.contains("&lt;script&gt;\"&amp;<code>x</code>"), "{page}");
        assert!(page.contains("id=\"a&quot;\""));
    }

    #[test]
    fn lines_have_the_colours_of_pictures() {
        for (n, colour) in PALETTE.iter().enumerate() {
            assert!(STYLE.contains(&format!("--c{n}:{colour}")), "{n}");
        }
    }

    #[test]
    fn the_page_fetches_nothing() {
        let page = page(&Document::default());
        for what in ["http:", "https:", "<link", "<script", "@import", "url("] {
            assert!(!page.contains(what), "{what}");
        }
    }
}
