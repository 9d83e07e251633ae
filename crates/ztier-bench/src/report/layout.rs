//! Text output: rows, and IOzone's own table.

use super::{Row, machine};

/// One line of a figure: name, value, cost.
pub fn row_line(row: &Row) -> String {
    if let Some(reason) = &row.missing {
        let case = if row.case.is_empty() { "all" } else { &row.case };
        return format!("{:<36} {:<40} missing: {reason}", row.system, case);
    }
    let value = row.value.unwrap_or(f64::NAN);
    let digits = match value.abs() {
        v if v >= 1000.0 => 0,
        v if v >= 10.0 => 1,
        _ => 3,
    };
    let mut line =
        format!("{:<36} {:<40} {value:>12.digits$} {:<10}", row.system, row.case, row.unit);
    if let (Some(spread), true) = (spread_percent(&row.runs), value > 0.0) {
        line += &format!(" ±{spread:.0} % of {}", row.runs.len());
    }
    if let Some(own) = row.cpu_own_percent {
        line += &format!(" cpu {own:4.0} %");
    }
    if let Some(machine) = row.cpu_machine_percent {
        line += &format!(", machine {machine:4.0} %");
    }
    line.trim_end().to_owned()
}

/// Half of the range of the runs, in percent of its middle.
fn spread_percent(runs: &[f64]) -> Option<f64> {
    let low = runs.iter().copied().reduce(f64::min)?;
    let high = runs.iter().copied().reduce(f64::max)?;
    (runs.len() > 1).then(|| 100.0 * (high - low) / (high + low))
}

/// A CSV field, quoted where it must be (RFC 4180).
pub fn csv_field(text: &str) -> String {
    if text.contains([',', '"', '\n']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

/// A column of IOzone's table, in its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    /// Kilobytes a second.
    KibPerSecond,
    /// CPU time of the testing thread, percent (`-+u`).
    CpuOwn,
    /// Busy time of the machine, percent of one CPU.
    CpuMachine,
}

/// Widths of the nine test columns in the source's tables.
const WIDTHS: [usize; 9] = [8, 8, 9, 9, 8, 8, 8, 9, 9];

/// The tables that IOzone prints, byte for byte in its columns.
pub struct IozoneTable {
    title: String,
}

impl IozoneTable {
    /// A table for one system and mode.
    pub fn new(title: impl Into<String>) -> Self {
        Self { title: title.into() }
    }

    /// The lines above the figures.
    pub fn header(&self, command: &str, column: Column) -> String {
        let unit = match column {
            Column::KibPerSecond => "Output is in Kbytes/sec",
            Column::CpuOwn => "Output is CPU use of the test (user + system) in percent",
            Column::CpuMachine => "Output is busy time of the machine in percent of one CPU",
        };
        format!(
            "### {title} ###
        Machine = {machine}
        CPU utilization Resolution = 0.000001 seconds.
        Command line used: {command}
        {unit}
        Time Resolution = 0.000001 seconds.
        File stride size set to 17 * record size.
                                                            random  random    bkwd   record   stride
              KB  reclen   write rewrite    read    reread    read   write    read  rewrite     read",
            title = self.title,
            machine = machine::uname_line(),
        )
    }

    /// One line of figures: file and record size in KiB, then the nine tests.
    pub fn row(file_kib: u64, record_kib: u64, values: &[f64; 9]) -> String {
        let mut line = format!("{file_kib:>16}{record_kib:>8}");
        for (value, width) in values.iter().zip(WIDTHS) {
            // At least one space, also when a figure is wider than the columns of 2010.
            line += &format!(" {value:>w$.0}", w = width - 1);
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines of the source's own tables.
    const GOLDEN: [(&str, u64, u64, [f64; 9]); 2] = [
        (
            "         1048576      64  309500  346052   741827   692543  668591  342610  943661   375120   986910",
            1_048_576,
            64,
            [
                309_500.0, 346_052.0, 741_827.0, 692_543.0, 668_591.0, 342_610.0, 943_661.0,
                375_120.0, 986_910.0,
            ],
        ),
        (
            "         1048576     128  274232  230013   578938  2271981  269776  170376 2232842   221372  2251926",
            1_048_576,
            128,
            [
                274_232.0,
                230_013.0,
                578_938.0,
                2_271_981.0,
                269_776.0,
                170_376.0,
                2_232_842.0,
                221_372.0,
                2_251_926.0,
            ],
        ),
    ];

    #[test]
    fn rows_are_those_of_the_source() {
        for (line, file, record, values) in GOLDEN {
            assert_eq!(IozoneTable::row(file, record, &values), line);
        }
    }

    #[test]
    fn header_lines_are_those_of_the_source_and_end_with_the_columns() {
        let header = IozoneTable::new("zramdisk case").header("iozone -a", Column::KibPerSecond);
        let lines: Vec<&str> = header.lines().collect();
        assert_eq!(lines[0], "### zramdisk case ###");
        assert!(lines[1].starts_with("        Machine = Linux "));
        assert!(lines.contains(&"        Output is in Kbytes/sec"));
        assert!(lines.contains(&"        File stride size set to 17 * record size."));
        assert_eq!(
            lines[lines.len() - 2..],
            [
                "                                                            random  random    bkwd   record   stride",
                "              KB  reclen   write rewrite    read    reread    read   write    read  rewrite     read",
            ]
        );
        // Figures end below the end of their headings.
        assert_eq!(lines[lines.len() - 1].len(), GOLDEN[0].0.len());
    }

    #[test]
    fn figures_that_outgrow_their_column_stay_apart() {
        let row = IozoneTable::row(1, 64, &[12_345_678.0; 9]);
        assert_eq!(row.split_whitespace().count(), 11);
    }

    #[test]
    fn lines_show_medians_with_their_spread() {
        let row = Row {
            system: "ztier".into(),
            case: "read".into(),
            unit: "MiB/s",
            value: Some(100.0),
            runs: vec![90.0, 100.0, 110.0],
            ..Row::default()
        };
        let line = row_line(&row);
        assert!(line.ends_with("100.0 MiB/s      ±10 % of 3"), "{line}");
        assert!(!row_line(&Row { runs: vec![100.0], ..row }).contains('±'));
    }

    #[test]
    fn csv_fields_are_quoted_where_they_must_be() {
        assert_eq!(csv_field("plain"), "plain");
        assert_eq!(csv_field("a,\"b\""), "\"a,\"\"b\"\"\"");
    }
}
