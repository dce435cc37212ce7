// SPDX-License-Identifier: Apache-2.0
//! Tests of [`crate::document`]: the effect of edits, and refused documents.

use serde_json::{Value, json};

use crate::{DocumentError, Item, MAX_BYTES, Object, SpecDocument};

fn edited(
    text: &str,
    edit: impl FnOnce(&mut Object<'_>) -> Result<(), DocumentError>,
) -> Result<String, DocumentError> {
    let mut document = SpecDocument::parse(text.as_bytes())?;
    edit(document.root())?;
    Ok(String::from_utf8(document.to_bytes()).unwrap())
}

#[test]
fn unedited_parts_stay_byte_for_byte() {
    let odd =
        " {\t\"a\" :1E+400 , \"a\":-0.10, \"\\ud800\":\"\\u00e9\\/\",\n\"n\":null,\"o\":{ } }\n\n";
    assert_eq!(edited(odd, |_| Ok(())).unwrap(), odd);
    let opened = edited(odd, |root| {
        root.object("o")?.object("deeper")?.array("still")?;
        root.object("n")?;
        root.array("absent")?;
        Ok(())
    });
    assert_eq!(opened.unwrap(), odd, "opening alone leaves no trace");
}

#[test]
fn a_replaced_value_changes_nothing_around_it() {
    let text = "{ \"x\" : {\"a\": 1 , \"b\"\t:\n2.50 ,\"c\":3}, \"y\":1.0 }";
    let result = edited(text, |root| root.object("x")?.set("b", &json!([true])));
    assert_eq!(result.unwrap(), "{ \"x\" : {\"a\": 1 , \"b\"\t:\n[true] ,\"c\":3}, \"y\":1.0 }");
}

#[test]
fn added_members_look_like_their_neighbours() {
    let text = "{\n\t\"a\": 1,\n\t\"b\": {\n\t\t\"c\": [\n\t\t\t1\n\t\t]\n\t}\n}\n";
    let result = edited(text, |root| {
        root.set("z", &json!("new"))?;
        let c = root.object("b")?.array("c")?;
        c.items().push(Item::new(&json!(2)));
        Ok(())
    });
    let wanted = "{\n\t\"a\": 1,\n\t\"b\": {\n\t\t\"c\": [\n\t\t\t1,\n\t\t\t2\n\t\t]\n\t},\n\t\"z\": \"new\"\n}\n";
    assert_eq!(result.unwrap(), wanted);
}

#[test]
fn absent_null_and_empty_sections_are_filled() {
    let fill = |root: &mut Object<'_>| {
        root.object("linux")?.object("resources")?.set("x", &json!(1))?;
        root.array("list")?.items().push(Item::new(&json!(2)));
        Ok(())
    };
    for (text, wanted) in [
        ("{}", r#"{"linux":{"resources":{"x":1}},"list":[2]}"#),
        ("{ }", r#"{"linux":{"resources":{"x":1}},"list":[2] }"#),
        (r#"{"list":null,"linux": null}"#, r#"{"list":[2],"linux": {"resources":{"x":1}}}"#),
        (
            r#"{"linux":{"resources":{} },"list":[ ]}"#,
            r#"{"linux":{"resources":{"x":1} },"list":[2 ]}"#,
        ),
    ] {
        assert_eq!(edited(text, fill).unwrap(), wanted);
    }
}

#[test]
fn members_can_be_removed_at_every_position() {
    let text = r#"{ "a":1, "b":2, "c":3 }"#;
    for (out, wanted) in [
        (&["a"][..], r#"{ "b":2, "c":3 }"#),
        (&["b"], r#"{ "a":1, "c":3 }"#),
        (&["c"], r#"{ "a":1, "b":2 }"#),
        (&["a", "c"], r#"{ "b":2 }"#),
        (&["a", "b", "c"], r#"{  }"#),
        (&["absent"], text),
    ] {
        let result = edited(text, |root| out.iter().try_for_each(|key| root.remove(key)));
        assert_eq!(result.unwrap(), wanted);
    }
}

#[test]
fn moved_elements_keep_their_text() {
    let text = r#"{"m":[ {"v": 1e3}, {"w":"\u0041"} ,{}]}"#;
    let result = edited(text, |root| {
        root.array("m")?.items().swap(0, 1);
        Ok(())
    });
    assert_eq!(result.unwrap(), r#"{"m":[ {"w":"\u0041"}, {"v": 1e3} ,{}]}"#);
}

#[test]
fn a_duplicate_key_or_one_in_another_case_is_not_edited() {
    for text in [
        r#"{"linux":{},"linux":{}}"#,
        r#"{"Linux":{}}"#,
        r#"{"linux":{},"LINUX":{}}"#,
        r#"{"linux":{},"l\u0069nux":{}}"#,
        r#"{"linux":null,"linuX":{}}"#,
    ] {
        let error = edited(text, |root| root.object("linux").map(|_| ())).unwrap_err();
        assert!(matches!(error, DocumentError::Ambiguous { .. }), "{text}: {error}");
        let error = edited(text, |root| root.set("linux", &Value::Null)).unwrap_err();
        assert!(error.to_string().contains("linux is spelt"), "{error}");
    }
    let long_s = edited("{\"proce\u{17f}s\":{}}", |root| root.object("process").map(|_| ()));
    assert!(matches!(long_s, Err(DocumentError::Ambiguous { .. })));
    let kelvin = edited("{\"hoo\u{212a}s\":{}}", |root| root.remove("hooks"));
    assert!(matches!(kelvin, Err(DocumentError::Ambiguous { .. })));
}

#[test]
fn ambiguous_keys_elsewhere_do_not_prevent_an_edit() {
    let text = r#"{"Hooks":{},"x":1,"x":2,"process":{"Args":[]}}"#;
    let result = edited(text, |root| root.object("process")?.set("cwd", &json!("/")));
    assert_eq!(result.unwrap(), r#"{"Hooks":{},"x":1,"x":2,"process":{"Args":[],"cwd":"/"}}"#);
}

#[test]
fn keys_that_are_data_are_case_sensitive() {
    let text = r#"{"annotations":{"Key":"1","k\u0065y":"2"}}"#;
    let result = edited(text, |root| root.map("annotations")?.set("key", &json!("3")));
    assert_eq!(result.unwrap(), r#"{"annotations":{"Key":"1","k\u0065y":"3"}}"#);
    let twice = edited(r#"{"annotations":{"a":"1","a":"2"}}"#, |root| {
        root.map("annotations")?.set("a", &json!("3"))
    });
    assert!(matches!(twice, Err(DocumentError::Ambiguous { .. })));
}

#[test]
fn documents_that_cannot_be_a_config_are_refused_in_one_line() {
    for text in ["", " ", "{", "[]", "null", "1", "x{}", "{\"a\":1,}", "{\"a\":01}", "\u{feff}{}"] {
        let error = SpecDocument::parse(text.as_bytes()).unwrap_err().to_string();
        assert!(!error.contains('\n') && error.contains("config.json"), "{text:?}: {error}");
    }
    assert!(SpecDocument::parse(b"{\"a\":\xff}").is_err(), "not UTF-8, and not in a string");
    let huge = vec![b' '; MAX_BYTES + 1];
    assert!(matches!(SpecDocument::parse(&huge), Err(DocumentError::TooLarge { .. })));
}

#[test]
fn a_document_of_the_maximum_length_is_accepted() {
    let mut text = b"{}".to_vec();
    text.resize(MAX_BYTES, b' ');
    assert_eq!(SpecDocument::parse(&text).map(|document| document.to_bytes() == text), Ok(true));
}

#[test]
fn members_of_a_large_object_are_found_as_in_a_small_one() {
    for count in [1, 15, 16, 17, 40] {
        let members: Vec<String> = (0..count).map(|key| format!("\"k{key}\": {key}.0")).collect();
        let text = format!("{{{}, \"Twice\": 1}}", members.join(", "));
        let result = edited(&text, |root| {
            for key in 0..30 {
                root.set(&format!("k{key}"), &json!(key))?;
                let other_case = root.set(&format!("K{key}"), &json!(1));
                assert!(matches!(other_case, Err(DocumentError::Ambiguous { .. })), "{key}");
            }
            for key in 0..30 {
                assert_eq!(root.value(&format!("k{key}"))?, Some(json!(key)));
            }
            assert_eq!(root.value("absent")?, None);
            root.remove("k29")?;
            assert_eq!(root.value("k29")?, None);
            Ok(())
        });
        let member = |key| {
            if key < 30 { format!("\"k{key}\":{key}") } else { format!("\"k{key}\":{key}.0") }
        };
        let mut expected: Vec<String> = (0..count.max(30)).map(member).collect();
        expected.insert(count, "\"Twice\":1".to_owned());
        expected.retain(|member| member != "\"k29\":29");
        assert_eq!(result.unwrap().replace(' ', ""), format!("{{{}}}", expected.join(",")));
    }
}

#[test]
fn keys_that_are_data_are_exact_in_a_large_object_too() {
    let members: Vec<String> = (0..20).map(|key| format!("\"Key{key}\":\"\"")).collect();
    let result = edited(&format!(r#"{{"annotations":{{{}}}}}"#, members.join(",")), |root| {
        root.map("annotations")?.set("key7", &json!("7"))?;
        root.map("annotations")?.set("Key8", &json!("8"))
    });
    let changed = members.join(",").replace(r#""Key8":"""#, r#""Key8":"8""#);
    assert_eq!(result.unwrap(), format!(r#"{{"annotations":{{{changed},"key7":"7"}}}}"#));
}

#[test]
fn a_section_opened_again_keeps_its_text() {
    let text = r#"{"o": { "a":1e3,  "b" : 2.50 }, "l": [ 1e3 ,2.50 ]}"#;
    let result = edited(text, |root| {
        root.object("o")?.set("c", &json!(3))?;
        root.object("o")?.set("d", &json!(4))?;
        root.array("l")?.items().push(Item::new(&json!(3)));
        root.array("l")?.items().push(Item::new(&json!(4)));
        Ok(())
    });
    let wanted = r#"{"o": { "a":1e3,  "b" : 2.50, "c":3, "d":4 }, "l": [ 1e3 ,2.50, 3, 4 ]}"#;
    assert_eq!(result.unwrap(), wanted);
}

#[test]
fn parts_that_gos_decoder_ignores_stay_unchanged() {
    for text in
        [&b"{\"a\":1}{}"[..], b"{\"a\":1} x\0\xff", b"{\"a\":\"\xff\",\"b\":[\"\xe2\x82\"]}"]
    {
        let mut document = SpecDocument::parse(text).unwrap();
        assert_eq!(document.to_bytes(), text);
        document.root().set("c", &json!(1)).unwrap();
        let wanted = document.to_bytes().windows(5).any(|part| part == b"\"c\":1");
        assert!(wanted && document.to_bytes().len() == text.len() + 6);
    }
}

#[test]
fn sections_of_another_type_are_not_overwritten() {
    let text = r#"{"linux":"text","process":{"env":{}}}"#;
    let object = edited(text, |root| root.object("linux").map(|_| ()));
    assert_eq!(object.unwrap_err().to_string(), "linux in config.json is not an object");
    let array = edited(text, |root| root.object("process")?.array("env").map(|_| ()));
    assert_eq!(array.unwrap_err().to_string(), "process.env in config.json is not an array");
}

#[test]
fn nesting_has_no_limit() {
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let text = format!(r#"{{"vendor":{deep},"a":{{"b":{deep}}}}}"#);
    let result = edited(&text, |root| root.object("a")?.set("c", &json!(1)));
    assert_eq!(result.unwrap(), format!(r#"{{"vendor":{deep},"a":{{"b":{deep},"c":1}}}}"#));
}

#[test]
fn a_replaced_member_can_be_edited_a_removed_one_stays_removed() {
    let text = r#"{"a":{"old":1.0},"b":{"old":1.0},"c":{"old":1.0},"d":3}"#;
    let result = edited(text, |root| {
        root.set("a", &json!({"x": 1, "y": 2}))?;
        let object = root.object("a")?;
        object.remove("x")?;
        object.set("z", &json!(3))?;
        root.remove("b")?;
        root.object("b")?;
        root.remove("c")?;
        root.object("c")?.set("new", &json!(1))
    });
    assert_eq!(result.unwrap(), r#"{"a":{"y":2,"z":3},"c":{"new":1},"d":3}"#);
    let wrong = edited(text, |root| {
        root.set("a", &json!([]))?;
        root.object("a").map(|_| ())
    });
    assert!(matches!(wrong, Err(DocumentError::WrongType { .. })), "{wrong:?}");
}

#[test]
fn a_value_includes_the_edits_made_so_far() {
    let result = edited(r#"{"a":{"x":1},"b":null,"c":[1],"d":{}}"#, |root| {
        root.object("a")?.set("y", &json!(2))?;
        root.array("c")?.items().clear();
        root.object("new")?;
        assert_eq!(root.value("a")?, Some(json!({"x": 1, "y": 2})));
        assert_eq!((root.value("b")?, root.value("new")?), (None, None));
        assert_eq!(root.value("c")?, Some(json!([])));
        root.remove("d")?;
        assert_eq!(root.value("d")?, None);
        Ok(())
    });
    assert_eq!(result.unwrap(), r#"{"a":{"x":1,"y":2},"b":null,"c":[]}"#);
}

#[test]
fn an_array_is_decoded_and_an_element_of_it_is_replaced() {
    let changed = edited(r#"{"a":["\u0061", 1]}"#, |root| {
        assert_eq!(root.array("absent")?.value(), None);
        let array = root.array("a")?;
        assert_eq!(array.value(), Some(json!(["a", 1])));
        let [text, number] = array.items().as_mut_slice() else { panic!("two elements") };
        assert_eq!((text.value(), text.as_string().as_deref()), (json!("a"), Some("a")));
        assert_eq!((number.value(), number.as_string()), (json!(1), None));
        number.replace(&json!({"b": 2}));
        Ok(())
    });
    assert_eq!(changed.unwrap(), r#"{"a":["\u0061", {"b":2}]}"#);
}

#[test]
fn an_opened_array_contains_what_was_set_before() {
    let set = edited(r#"{"a": [1], "o": {}}"#, |root| {
        root.set("a", &json!(["x"]))?;
        root.array("a")?.items().push(Item::new(&json!("y")));
        root.set("new", &json!([2]))?;
        root.array("new")?;
        root.set("empty", &json!([]))?;
        root.array("empty")?;
        Ok(())
    });
    assert_eq!(set.unwrap(), r#"{"a": ["x","y"], "o": {},"new": [2],"empty": []}"#);
    let removed = edited(r#"{"a": [1]}"#, |root| {
        root.remove("a")?;
        root.array("a")?.items().push(Item::new(&json!(2)));
        Ok(())
    });
    assert_eq!(removed.unwrap(), r#"{"a": [2]}"#);
}

#[test]
fn an_opened_object_that_was_set_empty_stays() {
    let set = edited(r#"{"o": {"a": 1}}"#, |root| {
        root.set("o", &json!({}))?;
        root.object("o")?;
        root.set("new", &json!({}))?;
        root.map("new").map(|_| ())
    });
    assert_eq!(set.unwrap(), r#"{"o": {},"new": {}}"#);
}

#[test]
fn a_value_that_was_set_is_not_opened_as_another_type() {
    for value in [json!({"b": 1}), json!("x"), json!(5)] {
        let opened = edited("{}", |root| {
            root.set("a", &value)?;
            root.array("a").map(|_| ())
        });
        assert!(matches!(opened, Err(DocumentError::WrongType { .. })), "{value}: {opened:?}");
    }
    let opened = edited(r#"{"a": {"b": 1}}"#, |root| {
        root.object("a")?.set("b", &json!(2))?;
        root.array("a").map(|_| ())
    });
    assert!(opened.is_err(), "{opened:?}");
}
