use super::*;

fn refusal(text: &str) -> String {
    toml::from_str::<CarbonSettings>(text).expect_err(text).to_string()
}

#[test]
fn an_empty_table_gives_the_defaults() {
    let settings: CarbonSettings = toml::from_str("").expect("no setting is needed");
    assert_eq!(settings, CarbonSettings::default());
    assert_eq!(settings.check(), Ok(()));
}

#[test]
fn errors_name_the_line_and_what_would_be_right() {
    let refused = refusal("source = \"file\"\ntimeout_s = -1\n");
    assert!(refused.contains("line 2") && refused.contains("from 0.1 to 300"), "{refused}");
    assert!(refusal("soruce = \"file\"").contains("unknown field"));
    assert!(refusal("[file]\nreplay_start = \"2021-07-01T00:00:00\"").contains("has no zone"));
    assert!(refusal("[uk_carbon_intensity]\nregion = 18").contains("1 (North Scotland) to 17 (Wales)"));
    assert!(refusal("[uk_carbon_intensity]\npostcode = \"BS16 1QY\"").contains("outward part"));
    assert!(refusal("[uk_carbon_intensity]\nbase_url = \"https://me:secret@host\"").contains("password"));
    assert!(refusal("fallback_g_per_kwh = nan").contains("gCO2e/kWh"));
    assert!(refusal("max_body_bytes = 1").contains("bytes from"));
}

#[test]
fn contradictions_are_found() {
    let check = |text: &str| toml::from_str::<CarbonSettings>(text).expect(text).check();
    assert_eq!(check("source = \"file\""), Err(SettingsError::NoPath { table: "carbon" }));
    let both = "[uk_carbon_intensity]\nregion = 13\npostcode = \"e1\"";
    assert!(check(both).is_err_and(|error| error.to_string().contains("has both region and postcode")));
    assert_eq!(
        check("[file]\norigin = \"forecast\""),
        Err(SettingsError::Origin { table: "carbon", origin: "forecast" })
    );
}

#[test]
fn settings_survive_being_written_and_read() {
    let text = "source = \"file\"\nzone = \"DE\"\npoll_interval_s = 60\n[file]\npath = \"a.csv\"\n\
                replay_start = \"2021-07-01T00:00Z\"\n[uk_carbon_intensity]\npostcode = \"bs16\"";
    let settings: CarbonSettings = toml::from_str(text).expect(text);
    let written = toml::to_string(&settings).expect("plain data");
    assert_eq!(toml::from_str::<CarbonSettings>(&written).expect("as written"), settings);
}

#[test]
fn a_chain_is_a_word_a_name_or_a_list_with_equals() {
    let error_of = |text: &str| refusal(&format!("source = {text}"));
    let chain = |text: &str| toml::from_str::<CarbonSettings>(&format!("source = {text}")).map(|s| s.source);
    assert_eq!(chain("\"auto\""), Ok(Chain::Auto));
    assert_eq!(chain("\"watttime\""), Ok(Chain::only(Source::WattTime)));
    let listed = chain("[\"electricity_maps\", [\"energinet\", \"energy_charts\"]]").expect("right");
    let groups = vec![vec![Source::ElectricityMaps], vec![Source::Energinet, Source::EnergyCharts]];
    assert_eq!(listed, Chain::Listed(groups));
    let written = serde_json::to_string(&listed).expect("plain data");
    assert_eq!(written, r#"["electricity_maps",["energinet","energy_charts"]]"#);
    for (wrong, part) in [
        ("\"electricitymaps\"", "`electricity_maps`"),
        ("[\"file\", \"file\"]", "in the list twice"),
        ("[]", "the list is empty"),
        ("3", "\"auto\", a source's name, or a list of names"),
    ] {
        let error = chain(wrong).expect_err(wrong).to_string();
        assert!(error.contains(part), "{wrong}: {error}");
    }
    for source in Source::ALL {
        assert!(error_of("\"x\"").contains(&format!("`{}`", source.name())));
        assert_eq!(serde_json::to_value(source).expect("a word"), source.name());
    }
}

#[test]
fn tables_of_sources_are_checked_and_hide_what_their_headers_hold() {
    let text = "[electricity_maps]\napi_version = 4\nheaders = { X-Key = \"s3cret\" }\nhorizon_hours = 72";
    let settings: CarbonSettings = toml::from_str(text).expect("right");
    assert_eq!(u8::from(settings.electricity_maps.api_version), 4);
    assert!(!format!("{settings:?}").contains("s3cret"));
    assert!(refusal("[electricity_maps]\napi_version = 5").contains("3 and 4"));
    assert!(refusal("[electricity_maps]\nhorizon_hours = 25").contains("6, 24, 48 and 72"));
    assert!(refusal("[electricity_maps]\nkey = \"s\"").contains("unknown field `key`"));
    assert!(refusal("[energinet]\nheaders = { \"a b\" = \"\" }").contains("not the name of a header"));
    assert!(refusal("[energinet]\nrequests_per_hour = 0").contains("from 1 to 36000"));
    assert!(refusal("jump_factor = 1").contains("from 1.5 to 1000"));
}
