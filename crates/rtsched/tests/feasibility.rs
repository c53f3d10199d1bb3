//! Admission and deadlines against brute force: every order of a few requests.

mod lab;

use lab::{DISK, Lab, bare, request};
use proptest::prelude::*;
use rtsched::{Class, Config, Request, StreamId, StreamSpec, Why};
use units::{Bitrate, Bytes, Duration, Instant};

const NANOSECOND: Duration = Duration::from_nanos(1);

fn of_stream(stream: u64, id: u64, offset: u64, length: Bytes) -> Request {
    Request { stream: Some(StreamId(stream)), ..request(id, Class::RealTime, offset, length, None) }
}

/// Whether the jobs hold their deadlines in some order without preemption, none before its release; by trying all.
fn some_schedule_holds(now: Instant, jobs: &[(Instant, Instant, Duration)]) -> bool {
    jobs.is_empty()
        || (0..jobs.len()).any(|first| {
            let (release, due, cost) = jobs[first];
            let end = now.max(release) + cost;
            let mut rest = jobs.to_vec();
            rest.remove(first);
            // A job that starts after another could have ended before it need not be tried.
            let idles = rest.iter().any(|(other, _, cost)| now.max(*other) + *cost <= release);
            end <= due && !idles && some_schedule_holds(end, &rest)
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// On small sets: what no order could serve is rejected or missed, what is admitted is not missed.
    #[test]
    fn what_no_order_could_serve_is_rejected_and_what_is_admitted_is_met(
        specs in prop::collection::vec((1_u64..17, 60_u64..700, 0_u64..1000), 1..6),
    ) {
        let mut lab = Lab::new(Config { largest_request: Bytes::from_kib(4), blocking_percent: 1, ..bare() });
        let mut jobs = Vec::new();
        let mut rejected = 0;
        for (stream, (size, deadline, _)) in specs.iter().enumerate() {
            let request = Bytes::from_mib(*size);
            let deadline = Duration::from_millis(*deadline);
            // One request each within the time looked at.
            let rate = Bitrate(request.0 * 8 / 4);
            let spec = StreamSpec { request: Some(request), deadline: Some(deadline), ..StreamSpec::reader(rate) };
            match lab.scheduler.admit(lab.now, StreamId(stream as u64), &spec) {
                Ok(_) => jobs.push((stream as u64, request, deadline)),
                Err(_) => rejected += 1,
            }
        }
        // All at once: the worst phase there is without blocking.
        let now = Instant::ZERO;
        for (id, (stream, request, _)) in jobs.iter().enumerate() {
            lab.enqueue(of_stream(*stream, id as u64, (id as u64) << 30, *request));
        }
        let all: Vec<_> = jobs.iter().map(|(_, request, deadline)| (now, now + *deadline, DISK.of(*request))).collect();
        prop_assert!(some_schedule_holds(now, &all));
        lab.drain();
        prop_assert_eq!(&lab.missed, &[]);
        // And the other way round: a set for which there is no order was not admitted as a whole.
        let everyone: Vec<_> = specs
            .iter()
            .map(|(size, deadline, _)| {
                (now, now + Duration::from_millis(*deadline), DISK.of(Bytes::from_mib(*size)))
            })
            .collect();
        if !some_schedule_holds(now, &everyone) {
            prop_assert!(rejected > 0);
        }
    }

    /// What is rejected could not be served either. Take the requests due by the instant that the rejection names. All
    /// are asked for as early as they may, while the longest request (another's excess) has just begun. Then one comes
    /// too late in any order, or the device has not a twentieth of its time left.
    #[test]
    fn what_is_rejected_no_order_could_serve(
        specs in prop::collection::vec((1_u64..17, 60_u64..900, 300_u64..4000), 1..6),
    ) {
        let mut lab = Lab::new(Config { largest_request: Bytes::from_kib(4), blocking_percent: 1, ..bare() });
        let mut admitted: Vec<StreamSpec> = Vec::new();
        for (stream, (size, deadline, period)) in specs.into_iter().enumerate() {
            let request = Bytes::from_mib(size);
            let deadline = Some(Duration::from_millis(deadline));
            let rate = Bitrate(request.0 * 8 * 1000 / period);
            let spec = StreamSpec { request: Some(request), deadline, ..StreamSpec::reader(rate) };
            let answer = lab.scheduler.admit(lab.now, StreamId(stream as u64), &spec);
            admitted.push(spec);
            let Err(rejected) = answer else { continue };
            let costs = admitted.iter().map(|spec| (spec, DISK.of(spec.request.unwrap())));
            match rejected.why {
                Why::NoTime { .. } => {
                    let share = |(spec, cost): (&StreamSpec, Duration)| {
                        cost.as_secs_f64() / spec.rate.time_for(spec.request.unwrap()).as_secs_f64()
                    };
                    prop_assert!(costs.map(share).sum::<f64>() > 0.95, "{rejected}");
                }
                Why::DeadlineTooShort { after, .. } => {
                    let begun = Instant::ZERO + costs.clone().map(|(_, cost)| cost).max().unwrap();
                    let end = Instant::ZERO + after;
                    let jobs = costs.flat_map(|(spec, cost)| {
                        let period = spec.rate.time_for(spec.request.unwrap());
                        let releases = (0..).map(move |nth| Instant::ZERO + period * nth);
                        let jobs = releases.map(move |release| (release, release + spec.deadline.unwrap(), cost));
                        jobs.take_while(move |(_, due, _)| *due <= end)
                    });
                    let jobs: Vec<_> = jobs.collect();
                    let work: Duration = jobs.iter().map(|(.., cost)| *cost).sum();
                    prop_assert!(begun + work > end, "{rejected}");
                    // More than these take too long to be tried in every order.
                    prop_assert!(jobs.len() > 7 || !some_schedule_holds(begun, &jobs), "{rejected}");
                }
                other => prop_assert!(false, "{other}"),
            }
            admitted.pop();
        }
    }

    /// The boundary between both, to the nanosecond.
    #[test]
    fn a_set_that_some_order_just_serves_is_admitted_and_with_a_nanosecond_less_it_is_not(
        sizes in prop::collection::vec(1_u64..17, 1..6),
    ) {
        let costs: Vec<_> = sizes.iter().map(|size| DISK.of(Bytes::from_mib(*size))).collect();
        let longest = *costs.iter().max().unwrap();
        let full = longest + costs.iter().sum::<Duration>();
        for (deadline, fits) in [(full, true), (full - NANOSECOND, false)] {
            let mut lab = Lab::new(Config { largest_request: Bytes::from_kib(4), blocking_percent: 1, ..bare() });
            let mut admit = |(stream, size): (usize, &u64)| {
                let request = Bytes::from_mib(*size);
                let rate = Bitrate(request.0 * 8 / 4);
                let deadline = Some(deadline);
                let spec = StreamSpec { request: Some(request), deadline, ..StreamSpec::reader(rate) };
                lab.scheduler.admit(lab.now, StreamId(stream as u64), &spec).is_ok()
            };
            prop_assert_eq!(sizes.iter().enumerate().all(&mut admit), fits);
            let jobs: Vec<_> =
                costs.iter().map(|cost| (Instant::ZERO, Instant::ZERO + deadline, *cost)).collect();
            prop_assert_eq!(some_schedule_holds(Instant::ZERO + longest, &jobs), fits);
        }
    }

    /// Jobs that come at any time. Where no order exists, something is missed. A miss needs that, or that it was not
    /// known what would come.
    #[test]
    fn misses_are_where_no_order_exists(
        jobs in prop::collection::vec((0_u64..300, 60_u64..500, 1_u64..13), 1..6),
    ) {
        let at = |millis| Instant::ZERO + Duration::from_millis(millis);
        let jobs: Vec<_> = jobs
            .into_iter()
            .map(|(release, deadline, size)| (at(release), at(release + deadline), Bytes::from_mib(size)))
            .collect();
        let mut lab = Lab::new(bare());
        let mut order: Vec<usize> = (0..jobs.len()).collect();
        order.sort_by_key(|job| jobs[*job].0);
        for job in order {
            let (release, due, length) = jobs[job];
            loop {
                lab.fill();
                match lab.next_completion() {
                    Some(completion) if completion <= release => lab.complete(),
                    _ => break,
                };
            }
            lab.now = lab.now.max(release);
            lab.enqueue(request(job as u64, Class::RealTime, (job as u64) << 30, length, Some(due)));
        }
        lab.drain();
        let as_jobs: Vec<_> = jobs.iter().map(|(release, due, length)| (*release, *due, DISK.of(*length))).collect();
        if !some_schedule_holds(Instant::ZERO, &as_jobs) {
            prop_assert!(!lab.missed.is_empty());
        }
        // With the longest command's time more for each, non-preemptive EDF meets what preemptive EDF could.
        let longest = as_jobs.iter().map(|(_, _, cost)| *cost).max().unwrap_or_default();
        if lab.missed.iter().any(|(_, tardiness)| *tardiness > longest) {
            prop_assert!(!some_schedule_holds(Instant::ZERO, &as_jobs));
        }
    }
}
