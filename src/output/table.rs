//! Tables: columns by two spaces, no lines, so that `awk` and eyes both like them.

/// Rows of text under a header.
#[derive(Clone, Debug, Default)]
pub struct Table {
    header: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// An empty table with this header.
    #[must_use]
    pub fn new(header: &[&'static str]) -> Self {
        Self { header: header.to_vec(), rows: vec![] }
    }

    /// Adds a row; an empty cell is shown as `-`.
    pub fn row(&mut self, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.header.len(), "a row has a cell for each column");
        self.rows.push(cells);
    }

    /// The text, one line a row, without spaces at line ends.
    #[must_use]
    pub fn render(&self) -> String {
        use comfy_table::{ContentArrangement, TableStyle};
        let mut table = comfy_table::Table::new();
        table.load_style(TableStyle::new()).set_content_arrangement(ContentArrangement::Disabled);
        table.set_header(self.header.clone());
        for row in &self.rows {
            table.add_row(row.iter().map(|cell| if cell.is_empty() { "-" } else { cell }));
        }
        for column in table.column_iter_mut() {
            column.set_padding((0, 2));
        }
        table.lines().map(|line| format!("{}\n", line.trim_end())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_they_need() {
        let mut table = Table::new(&["NAME", "STATUS", "AGE"]);
        table.row(vec!["node-1".into(), "ready".into(), "3s".into()]);
        table.row(vec!["a-longer-name".into(), String::new(), "12d".into()]);
        insta::assert_snapshot!(table.render(), @r"
        NAME           STATUS  AGE
        node-1         ready   3s
        a-longer-name  -       12d
        ");
    }
}
