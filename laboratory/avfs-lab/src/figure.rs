//! Figures, drawn once, in two formats.
//!
//! **For:** an experiment's figure like Figures 4 and 5 of the paper: what the device carried (solid, left axis) and how busy
//! the processors were (broken, right axis) against the number of clients, all contenders in one picture; as SVG, and as PNG
//! from the same drawing. **State:** none. **Invariants:** the same points make the same SVG; a PNG has its text, or is
//! refused.

pub mod memory;

use crate::point::Point;
use crate::run::of;
use avfs_workloads::{Contender, Declaration, Experiment};
use resvg::{tiny_skia, usvg};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use thiserror::Error;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 220.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 50.0;

/// Pixels to a unit of the drawing, so that text is sharp on today's screens.
const SCALE: f32 = 2.0;

/// Where Debian puts the font of all text.
const FONT: &str = "/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf";

/// Colour-blind safe: Okabe and Ito 2008.
const COLOURS: [&str; 8] =
    ["#0072b2", "#56b4e9", "#d55e00", "#e69f00", "#999999", "#000000", "#009e73", "#cc79a7"];

/// Why there is no PNG.
#[derive(Debug, Error)]
pub enum FigureError {
    /// Its text could not be drawn.
    #[error("{FONT}: {0}: install fonts-dejavu-core")]
    Font(io::Error),
    /// The drawing is none.
    #[error("the figure cannot be drawn: {0}")]
    Drawing(#[from] usvg::Error),
    /// Too large for memory, or for the format.
    #[error("the figure cannot be written as PNG: {0}")]
    Format(String),
}

/// Data to places on the drawing.
struct Axes {
    clients: u32,
    megabits: f64,
    step: f64,
}

impl Axes {
    fn around(points: &[&Point], megabits: impl Fn(&Point) -> f64) -> Self {
        let clients = points.iter().map(|point| point.clients).max().unwrap_or(1).max(2);
        let top = points.iter().map(|point| megabits(point)).fold(100.0, f64::max);
        let step =
            [50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0].into_iter().find(|step| top / step <= 8.0);
        let step = step.unwrap_or(10_000.0);
        Self { clients, megabits: (top / step).ceil() * step, step }
    }

    fn x(&self, clients: u32) -> f64 {
        LEFT + f64::from(clients) / f64::from(self.clients) * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, megabits: f64) -> f64 {
        HEIGHT - BOTTOM - megabits / self.megabits * (HEIGHT - TOP - BOTTOM)
    }

    fn y_percent(&self, percent: f64) -> f64 {
        self.y(percent / 100.0 * self.megabits)
    }

    fn draw(&self, text: &mut String) {
        let right = WIDTH - RIGHT;
        for index in 0..=(self.megabits / self.step).round() as u32 {
            let megabits = f64::from(index) * self.step;
            let y = self.y(megabits);
            grid_line(text, LEFT..right, y, megabits);
        }
        for percent in [0.0, 25.0, 50.0, 75.0, 100.0] {
            let y = self.y_percent(percent) + 4.0;
            let _ = writeln!(text, "<text x=\"{:.1}\" y=\"{y:.1}\">{percent:.0}</text>", right + 6.0);
        }
        for clients in 1..=self.clients {
            below(text, self.x(clients), HEIGHT - BOTTOM, clients);
        }
        let (across, up) = ((LEFT + right) / 2.0, (TOP + HEIGHT - BOTTOM) / 2.0);
        let _ = writeln!(
            text,
            "<text x=\"{across:.1}\" y=\"{:.1}\" text-anchor=\"middle\">clients (hollow: somebody was late)</text>",
            HEIGHT - 12.0
        );
        let sides = [(16.0, "device, Mbit/s (solid)"), (right + 42.0, "processors, % (broken)")];
        for (x, name) in sides {
            let _ = writeln!(
                text,
                "<text x=\"{x}\" y=\"{up:.1}\" text-anchor=\"middle\" transform=\"rotate(-90 {x} {up:.1})\">{name}</text>"
            );
        }
    }
}

/// What the device did for the clients that count, Mbit/s: reads for players, writes for recorders.
fn carried_megabits(experiment: &Experiment, point: &Point) -> f64 {
    match experiment.client.recorded_megabits() {
        Some(_) => point.device_write_megabits,
        None => point.device_read_megabits,
    }
}

/// A contender's mean at a number of clients.
struct Place {
    clients: u32,
    megabits: f64,
    processors: f64,
    clean: bool,
}

fn places(experiment: &Experiment, own: &[&Point]) -> Vec<Place> {
    let mut by_number: BTreeMap<u32, Vec<&Point>> = BTreeMap::new();
    for point in own {
        by_number.entry(point.clients).or_default().push(point);
    }
    let place = |(clients, points): (u32, Vec<&Point>)| {
        let mean = |figure: &dyn Fn(&Point) -> f64| {
            points.iter().map(|point| figure(point)).sum::<f64>() / points.len() as f64
        };
        Place {
            clients,
            megabits: mean(&|point| carried_megabits(experiment, point)),
            processors: mean(&|point| point.processors),
            clean: points.iter().all(|point| point.clean),
        }
    };
    by_number.into_iter().map(place).collect()
}

/// An experiment's figure; a point where somebody was late is hollow.
pub fn svg(declaration: &Declaration, experiment: &Experiment, points: &[Point]) -> String {
    let own = |contender: &Contender| of(points, contender, experiment);
    let all: Vec<&Point> = declaration.contenders.iter().flat_map(own).collect();
    let axes = Axes::around(&all, |point| carried_megabits(experiment, point));
    let mut text = sheet(WIDTH, HEIGHT);
    let _ =
        writeln!(text, "<text x=\"{LEFT}\" y=\"20\" font-size=\"14\">{}</text>", escape(&experiment.name));
    axes.draw(&mut text);
    for (index, contender) in declaration.contenders.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        curves(&mut text, &axes, &places(experiment, &own(contender)), colour);
        let (x, y) = (WIDTH - RIGHT + 58.0, TOP + 18.0 * index as f64 + 8.0);
        key(&mut text, (x, y), 22.0, colour, &contender.name);
    }
    text + "</svg>\n"
}

/// A contender's two lines, and the points of the solid one.
fn curves(text: &mut String, axes: &Axes, places: &[Place], colour: &str) {
    let mut line = |height: &dyn Fn(&Place) -> f64, style: &str| {
        let line: Vec<String> =
            places.iter().map(|place| format!("{:.1},{:.1}", axes.x(place.clients), height(place))).collect();
        let _ = writeln!(
            text,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" {style}/>",
            line.join(" ")
        );
    };
    line(&|place| axes.y_percent(place.processors), "stroke-width=\"1\" stroke-dasharray=\"4 3\"");
    line(&|place| axes.y(place.megabits), "stroke-width=\"1.5\"");
    for place in places {
        let (x, y) = (axes.x(place.clients), axes.y(place.megabits));
        let fill = if place.clean { colour } else { "white" };
        let _ = writeln!(
            text,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"{fill}\" stroke=\"{colour}\"/>"
        );
    }
}

/// An empty drawing; `</svg>` ends it.
fn sheet(width: f64, height: f64) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n"
    )
}

/// A line across, and what it stands for on its left.
fn grid_line(text: &mut String, across: Range<f64>, y: f64, value: f64) {
    let _ = writeln!(
        text,
        "<line x1=\"{}\" x2=\"{}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#dddddd\"/>\
         <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{value:.0}</text>",
        across.start,
        across.end,
        across.start - 6.0,
        y + 4.0
    );
}

/// A number of clients below the drawing's bottom.
fn below(text: &mut String, x: f64, bottom: f64, clients: u32) {
    let y = bottom + 18.0;
    let _ = writeln!(text, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\">{clients}</text>");
}

/// What a colour stands for.
fn key(text: &mut String, (x, y): (f64, f64), length: f64, colour: &str, name: &str) {
    let _ = writeln!(
        text,
        "<line x1=\"{x}\" x2=\"{}\" y1=\"{y}\" y2=\"{y}\" stroke=\"{colour}\" stroke-width=\"2\"/>\
         <text x=\"{}\" y=\"{}\">{}</text>",
        x + length,
        x + length + 6.0,
        y + 4.0,
        escape(name)
    );
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// A drawing as PNG, two pixels to its unit.
///
/// # Errors
/// When its font is not there, or the drawing is none.
pub fn png(svg: &str) -> Result<Vec<u8>, FigureError> {
    let font = std::fs::read(FONT).map_err(FigureError::Font)?;
    let mut options = usvg::Options::default();
    let fonts = Arc::make_mut(&mut options.fontdb);
    fonts.load_font_data(font);
    fonts.set_sans_serif_family("DejaVu Sans");
    let tree = usvg::Tree::from_str(svg, &options)?;
    let size = tree.size();
    let (width, height) = ((size.width() * SCALE).ceil() as u32, (size.height() * SCALE).ceil() as u32);
    let mut pixels = tiny_skia::Pixmap::new(width, height)
        .ok_or_else(|| FigureError::Format(format!("{width} x {height} pixels")))?;
    resvg::render(&tree, tiny_skia::Transform::from_scale(SCALE, SCALE), &mut pixels.as_mut());
    pixels.encode_png().map_err(|error| FigureError::Format(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::{point, smoke};

    #[test]
    fn a_figure_holds_every_contender_and_point() {
        let declaration = smoke();
        let points = [point(1, true, 0), point(2, false, 0)];
        let figure = svg(&declaration, &declaration.experiments[0], &points);
        assert_eq!(figure.matches("<circle").count(), 2);
        assert_eq!(figure.matches("fill=\"white\" stroke").count(), 1, "one was late");
        assert_eq!(figure.matches("stroke-dasharray").count(), 1, "the processors of one contender");
        assert!(figure.contains(">ext4</text>"));
    }

    #[test]
    fn a_png_is_the_drawing_with_its_text() {
        if let Err(error) = std::fs::metadata(FONT) {
            assert!(png("<svg").expect_err("no font").to_string().contains("fonts-dejavu-core"));
            eprintln!("skipped: {FONT}: {error}");
            return;
        }
        let drawing = |inside: &str| {
            format!(
                "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 40 20\" font-family=\"sans-serif\">\
                 <rect width=\"40\" height=\"20\" fill=\"white\"/>{inside}</svg>"
            )
        };
        let empty = png(&drawing("")).expect("it is a drawing");
        let pixels = tiny_skia::Pixmap::decode_png(&empty).expect("it is a PNG");
        assert_eq!((pixels.width(), pixels.height()), (80, 40));
        assert_ne!(empty, png(&drawing("<text x=\"2\" y=\"15\">ext4</text>")).expect("it is a drawing"));
        assert!(png("<svg").is_err());
    }
}
