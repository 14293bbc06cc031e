//! A `palisade` with widgets: every verb of ours, and one module more.

fn main() -> std::process::ExitCode {
    palisade::Builder::new().plugin(plugin_widgets::AcmeWidgets).run()
}
