//! `rtsched-sim`: the simulator's command.
fn main() {
    let spec = rtsched_sim::device::DeviceSpec::named("raid5-table5").unwrap();
    for seed in [1, 2] {
        for cell in rtsched_sim::calibration::table_5(&spec, seed) {
            println!(
                "{:?} {} {:.1} {:.1} {:+.2}",
                cell.direction,
                cell.length,
                cell.published,
                cell.modelled,
                cell.error_percent()
            );
        }
    }
}
