use super::instances::{REFERENCE, at};
use super::receding::training;
use crate::domain::{Origin, Quoted, Slot, TimeSeries};
use crate::plan::{Prices, Reason, Weighing, plan};
use crate::units::{GramsPerKwh, PricePerMwh};

fn prices(of_hours: &[f64]) -> TimeSeries<Quoted<PricePerMwh>> {
    let point = |(hour, price): (f64, &f64)| {
        let slot = Slot::new(at(3600.0 * hour), at(3600.0 * (hour + 1.0))).expect("an hour");
        (slot, Quoted { value: PricePerMwh::new(*price), origin: Origin::Forecast })
    };
    TimeSeries::from_points([0.0, 1.0, 2.0, 3.0].into_iter().zip(of_hours).map(point).collect()).0
}

/// The job's four hours have carbon intensities of 300, 600, 400 and 500 g/kWh.
#[test]
fn the_price_replaces_carbon_by_its_weight() {
    let mut job = training();
    let known_prices = prices(&[90.0, 10.0, 20.0, 80.0]);
    let reference = PricePerMwh::new(50.0);
    let with = |job: &super::receding::Job| {
        let mut request = job.request();
        request.prices = Some(Prices { known_prices: &known_prices, reference });
        (plan(&request).expect("plannable"), request.weighed_intensities(&job.horizon))
    };
    let carbon_alone = job.plan();
    let (same, weighed) = with(&job);
    assert_eq!((&same, same.weighing), (&carbon_alone, Weighing::Carbon), "no weight, no influence");
    assert_eq!(weighed[0], GramsPerKwh::new(300.0));

    job.objective.price_weight = 1.0;
    let (by_price, weighed) = with(&job);
    assert_eq!(by_price.weighing, Weighing::CarbonAndPrice);
    assert_eq!(weighed[0], REFERENCE * (90.0 / 50.0));
    let fastest = by_price.segments.iter().find(|s| s.point == 0).expect("a fast part");
    assert_eq!(fastest.slot.start(), at(3600.0), "the cheapest hour is the second, the dirtiest");
    assert!(by_price.expected.carbon > carbon_alone.expected.carbon, "reported carbon is actual carbon");
    assert_eq!(fastest.intensity, GramsPerKwh::new(600.0));
    let by_both = |reason| matches!(reason, Reason::Slower { priced: true, .. } | Reason::Faster { priced: true, .. });
    let text = by_price.segments.iter().find(|s| by_both(s.reason)).expect("a reason").reason.to_string();
    assert!(text.contains("carbon and price amount to "), "{text}");

    job.objective.price_weight = 0.5;
    let (_, weighed) = with(&job);
    assert!((weighed[1].get() - (300.0 + 0.5 * 350.0 * 0.2)).abs() < 1e-9);
}

#[test]
fn without_prices_only_carbon_counts_and_this_is_reported() {
    let mut job = training();
    let carbon_alone = job.plan();
    job.objective.price_weight = 1.0;
    let plan_without = job.plan();
    assert_eq!(plan_without.weighing, Weighing::NoPrices);
    assert_eq!(plan_without.segments, carbon_alone.segments);
    let mut request = job.request();
    let known_prices = prices(&[-90.0, -10.0]);
    request.prices = Some(Prices { known_prices: &known_prices, reference: PricePerMwh::new(-50.0) });
    assert_eq!(request.weighing(), Weighing::NoPrices, "a mean below zero makes nothing commensurable");
    // Hours without a price have the mean of the known ones; a negative price gives an intensity of 0, not less.
    let known_prices = prices(&[-20.0, 80.0]);
    request.prices = Some(Prices { known_prices: &known_prices, reference: PricePerMwh::new(50.0) });
    let weighed = request.weighed_intensities(&job.horizon);
    assert_eq!((weighed[0], weighed[2]), (GramsPerKwh::ZERO, REFERENCE * 0.6));
}
