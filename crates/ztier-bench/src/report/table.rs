//! Text: tables with a column for each figure, and bars.

/// The columns of a table, each with its heading and minimal width.
pub struct Table(Vec<(&'static str, usize)>);

impl Table {
    /// A table with these columns; each is at least as wide as its heading.
    pub fn new(columns: &[(&'static str, usize)]) -> Self {
        Self(columns.iter().map(|&(name, width)| (name, width.max(name.chars().count()))).collect())
    }

    /// The line of headings.
    pub fn head(&self) -> String {
        self.line(&self.0.iter().map(|(name, _)| (*name).to_owned()).collect::<Vec<_>>())
    }

    /// A line of cells, right-aligned under their headings.
    pub fn line(&self, cells: &[String]) -> String {
        let cell = |((_, width), text): (&(_, usize), &String)| format!("{text:>width$}");
        self.0.iter().zip(cells).map(cell).collect::<Vec<_>>().join("  ")
    }
}

/// Groups of bars on one common scale, the longest `width` characters wide.
pub fn bars(groups: &[(String, Vec<(String, f64)>)], width: usize) -> String {
    let all = || groups.iter().flat_map(|(_, bars)| bars);
    let most = all().map(|(_, value)| *value).fold(f64::MIN_POSITIVE, f64::max);
    let title = groups.iter().map(|(title, _)| title.chars().count()).max().unwrap_or(0);
    let name = all().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for (group, bars) in groups {
        for (i, (what, value)) in bars.iter().enumerate() {
            let group = if i == 0 { group.as_str() } else { "" };
            // In eighths of a character, and at least one.
            let eighths = ((value / most * width as f64 * 8.0) as usize).max(1);
            let rest = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"][eighths % 8];
            let bar = "█".repeat(eighths / 8) + rest;
            let digits = if *value < 10.0 { 3 } else { 0 };
            text += &format!("{group:title$}  {what:name$} {bar} {value:.digits$}\n");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_end_where_their_headings_end() {
        let table = Table::new(&[("a", 3), ("longer", 2)]);
        assert_eq!(table.head(), "  a  longer");
        assert_eq!(table.line(&["1".into(), "22".into()]), "  1      22");
    }

    #[test]
    fn bars_have_one_scale() {
        let bar = |name: &str, value| (name.to_owned(), value);
        let groups = [
            ("(A)".to_owned(), vec![bar("source", 0.0), bar("here", 4.0)]),
            ("(B) long".to_owned(), vec![bar("source", 16.0)]),
        ];
        let text = bars(&groups, 8);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "(A)       source ▏ 0.000",
                "          here   ██ 4.000",
                "(B) long  source ████████ 16"
            ]
        );
    }
}
