//! The listener, and what is answered at which path.

use crate::history::{EACH, History};
use crate::metrics::{self, Figures};
use avfs_core::config::Listen;
use avfs_core::events::{EventReport, StreamsReport};
use avfs_fuse::control::{Answer, Handler, Info, Request};
use axum::Router;
use axum::extract::{Query, Request as HttpRequest, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::io;
use std::net::{IpAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use tokio::net::UnixListener;
use tokio::sync::{Semaphore, oneshot};

/// Questions to the volume at a time. An operator's figure: some browsers and a monitor.
const AT_ONCE: usize = 8;

/// Events that one answer has at most: all that a daemon keeps. It bounds memory.
const MOST_EVENTS: usize = 2000;

/// What listens. Dropping it ends it.
pub struct Web {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    socket: Option<PathBuf>,
}

impl Web {
    /// Listens, and answers what `ask` says. At a Unix socket, which replaces what is there, root may connect and members of `group`.
    ///
    /// # Errors
    /// When the place cannot be had, or no thread.
    pub fn start(listen: &Listen, group: Option<u32>, ask: Arc<Handler>) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        let _in_runtime = runtime.enter();
        let (listener, socket) = match listen {
            Listen::Loopback(address) => {
                let listener = TcpListener::bind(address)?;
                listener.set_nonblocking(true)?;
                (Listener::Tcp(tokio::net::TcpListener::from_std(listener)?), None)
            }
            Listen::Socket(path) => {
                match std::fs::remove_file(path) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
                let listener = UnixListener::bind(path)?;
                if let Some(group) = group {
                    std::os::unix::fs::chown(path, None, Some(group))?;
                }
                let mode = if group.is_some() { 0o660 } else { 0o600 };
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
                (Listener::Unix(listener), Some(path.clone()))
            }
        };
        let (stop, stopped) = oneshot::channel();
        drop(_in_runtime);
        let thread = thread::Builder::new().name("avfs-web".into()).spawn(move || {
            let asking = Asking {
                ask,
                room: Arc::new(Semaphore::new(AT_ONCE)),
                history: Arc::new(Mutex::new(History::new())),
            };
            runtime.block_on(async {
                tokio::select! {
                    () = remember(asking.clone()) => {}
                    () = listener.serve(asking) => {}
                    _ = stopped => {}
                }
            });
            // What still asks the volume must not keep the daemon from ending.
            runtime.shutdown_background();
        })?;
        Ok(Self { stop: Some(stop), thread: Some(thread), socket })
    }
}

impl Drop for Web {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        if let Some(socket) = &self.socket {
            // Another may have it by now; it is replaced by the next in any case.
            let _ = std::fs::remove_file(socket);
        }
    }
}

enum Listener {
    Tcp(tokio::net::TcpListener),
    Unix(UnixListener),
}

impl Listener {
    async fn serve(self, asking: Asking) {
        let routes = Router::new()
            .route("/", get(|| file("text/html; charset=utf-8", include_str!("../page/page.html"))))
            .route("/page.css", get(|| file("text/css", include_str!("../page/page.css"))))
            .route("/page.js", get(|| file("text/javascript", include_str!("../page/page.js"))))
            .route("/metrics", get(metrics))
            .route("/api/v1/info", get(info))
            .route("/api/v1/streams", get(streams))
            .route("/api/v1/events", get(events))
            .route("/api/v1/free-space", get(free_space))
            .route("/api/v1/history", get(history))
            .with_state(asking)
            .layer(middleware::from_fn(guard));
        let ended = match self {
            Self::Tcp(listener) => axum::serve(listener, routes).await,
            Self::Unix(listener) => axum::serve(listener, routes).await,
        };
        if let Err(error) = ended {
            tracing::warn!(%error, "nothing is shown any more");
        }
    }
}

/// Refuses what a page elsewhere could have a browser ask, by a name that leads here: the name is not this host's own. And
/// lets the page load nothing from anywhere else.
async fn guard(request: HttpRequest, next: Next) -> Response {
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    if !host.is_none_or(is_this_host) {
        return (StatusCode::FORBIDDEN, "ask for localhost, or for its address\n").into_response();
    }
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    let policy = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; \
                  base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// By its name or a loopback address, with a port or without.
fn is_this_host(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

async fn file(kind: &'static str, text: &'static str) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, kind)], text)
}

/// What a request of the page needs to ask the volume.
#[derive(Clone)]
struct Asking {
    ask: Arc<Handler>,
    room: Arc<Semaphore>,
    history: Arc<Mutex<History>>,
}

/// It cannot be said.
struct Failed(String);

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        #[derive(Serialize)]
        struct Error {
            error: String,
        }
        (StatusCode::SERVICE_UNAVAILABLE, json(&Error { error: self.0 })).into_response()
    }
}

impl Asking {
    async fn ask(&self, request: Request) -> Result<Answer, Failed> {
        // The room is never closed.
        let _place = self.room.acquire().await.ok();
        let ask = Arc::clone(&self.ask);
        match tokio::task::spawn_blocking(move || ask(request)).await {
            Ok(Answer::Error(why)) => Err(Failed(why)),
            Ok(answer) => Ok(answer),
            Err(_) => Err(Failed("the request failed inside the daemon; see its log".into())),
        }
    }

    async fn info(&self) -> Result<Box<Info>, Failed> {
        match self.ask(Request::Info {}).await? {
            Answer::Info(info) => Ok(info),
            _ => Err(other()),
        }
    }

    async fn streams(&self, bits_per_second: Option<u64>) -> Result<Box<StreamsReport>, Failed> {
        match self.ask(Request::Streams { bits_per_second }).await? {
            Answer::Streams(streams) => Ok(streams),
            _ => Err(other()),
        }
    }

    async fn events(&self, since: u64, most: usize) -> Result<Vec<EventReport>, Failed> {
        match self.ask(Request::Events { since, most }).await? {
            Answer::Events(events) => Ok(events),
            _ => Err(other()),
        }
    }
}

fn other() -> Failed {
    Failed("the daemon answered something else than was asked".into())
}

fn json(value: &impl Serialize) -> Response {
    match serde_json::to_vec(value) {
        Ok(text) => ([(header::CONTENT_TYPE, "application/json")], text).into_response(),
        // Only a path that is not UTF-8 comes to this.
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// Adds a point to the last hour, each time that one is due.
async fn remember(asking: Asking) {
    let mut due = tokio::time::interval(EACH);
    due.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        due.tick().await;
        let since = asking.history.lock().next_event;
        let asked = (asking.streams(None).await, asking.events(since, MOST_EVENTS).await);
        if let (Ok(streams), Ok(events)) = asked {
            asking.history.lock().add(&streams, &events);
        }
    }
}

async fn metrics(State(asking): State<Asking>) -> Result<Response, Failed> {
    let (info, streams) = (asking.info().await?, asking.streams(None).await?);
    let text = metrics::text(&[Figures { info: &info, streams: &streams }]);
    Ok(([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response())
}

async fn info(State(asking): State<Asking>) -> Result<Response, Failed> {
    Ok(json(&asking.info().await?))
}

#[derive(Deserialize)]
struct StreamsQuery {
    bits_per_second: Option<u64>,
}

async fn streams(
    State(asking): State<Asking>,
    Query(query): Query<StreamsQuery>,
) -> Result<Response, Failed> {
    let mut streams = asking.streams(query.bits_per_second).await?;
    streams.streams.iter_mut().flat_map(|stream| &mut stream.clients).for_each(avfs_fuse::event_log::look_up);
    Ok(json(&streams))
}

#[derive(Deserialize)]
struct EventsQuery {
    #[serde(default)]
    since: u64,
    most: Option<usize>,
}

/// An event, and what it says in words.
#[derive(Serialize)]
struct Told {
    #[serde(flatten)]
    event: EventReport,
    sentence: String,
}

async fn events(State(asking): State<Asking>, Query(query): Query<EventsQuery>) -> Result<Response, Failed> {
    let events = asking.events(query.since, query.most.unwrap_or(MOST_EVENTS).min(MOST_EVENTS)).await?;
    let told = events.into_iter().map(|event| Told { sentence: event.sentence(), event });
    Ok(json(&told.collect::<Vec<_>>()))
}

async fn free_space(State(asking): State<Asking>) -> Result<Response, Failed> {
    match asking.ask(Request::FreeSpace {}).await? {
        Answer::FreeSpace(report) => Ok(json(&report)),
        _ => Err(other()),
    }
}

async fn history(State(asking): State<Asking>) -> Response {
    let history = asking.history.lock().clone();
    json(&history)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_not_this_hosts_is_told_apart() {
        for own in ["localhost", "LOCALHOST:9750", "127.0.0.1:1", "127.8.8.8", "[::1]:9750", "[::1]"] {
            assert!(is_this_host(own), "{own}");
        }
        for other in
            ["example.org", "example.org:9750", "localhost.example.org", "10.0.0.1:9750", "[2001:db8::1]", ""]
        {
            assert!(!is_this_host(other), "{other}");
        }
    }
}
