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
        self.rows.push(cells.into_iter().map(super::on_one_line).collect());
    }

    /// The same in columns that are as wide as those of earlier tables at least, for one that goes on.
    #[must_use]
    pub fn render_as(&self, widths: &mut Vec<usize>, has_header: bool) -> String {
        let header: Vec<String> = self.header.iter().map(|cell| (*cell).to_owned()).collect();
        let rows: Vec<&Vec<String>> =
            has_header.then_some(&header).into_iter().chain(&self.rows).collect();
        widths.resize(self.header.len().max(widths.len()), 0);
        for row in &rows {
            for (width, cell) in widths.iter_mut().zip(row.iter()) {
                *width = (*width).max(cell.chars().count().max(1));
            }
        }
        let mut text = String::new();
        for row in rows {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(widths.iter()) {
                let cell = if cell.is_empty() { "-" } else { cell };
                line.push_str(&format!("{cell:<width$}  "));
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
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
    fn a_table_that_goes_on_keeps_its_columns() {
        let mut widths = vec![];
        let mut first = Table::new(&["NAME", "STATUS"]);
        first.row(vec!["a-longer-name".into(), "ready".into()]);
        let mut text = first.render_as(&mut widths, true);
        assert_eq!(text, first.render(), "the first part is as any table");
        let mut more = Table::new(&["NAME", "STATUS"]);
        more.row(vec!["b".into(), String::new()]);
        text.push_str(&more.render_as(&mut widths, false));
        insta::assert_snapshot!(text, @r"
        NAME           STATUS
        a-longer-name  ready
        b              -
        ");
    }

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
