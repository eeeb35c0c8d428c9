//! Formats that are no JSON, or have JSON between markers of their own.

use super::{case, check, check_after, thought};

const OSLO: (&str, &str) = ("weather", r#"{"city":"Oslo"}"#);
const NOW: (&str, &str) = ("now", "{}");

/// Functionary 3.1, and the calls that Meta documents for Llama 3.1.
#[test]
fn function_xml_with_arguments_in_json() {
    check(
        "<function= <|python_tag|>",
        &[
            case("Plain.", "Plain.", &[]),
            case(
                "<function=weather>{\"city\": \"Oslo\"}</function>",
                "",
                &[OSLO],
            ),
            case("<function=now>{}</function>", "", &[NOW]),
            case(
                "<function=now>{}</function><function=weather>{\"city\": \"Oslo\"}</function>",
                "",
                &[NOW, OSLO],
            ),
            case(
                "<function=now>{}</function>\n<function=now>{}</function>",
                "",
                &[NOW, NOW],
            ),
            case("I look.\n<function=now>{}</function>", "I look.", &[NOW]),
            case(
                "<function=search>{\"query\": \"</function> <b>\", \"tags\": [\"a\"], \"filter\": {\"x\": null}}</function>",
                "",
                &[(
                    "search",
                    "{\"query\":\"</function> <b>\",\"tags\":[\"a\"],\"filter\":{\"x\":null}}",
                )],
            ),
            case(
                "<function=weather>\n{\"city\": \"Oslo\"}\n</function>",
                "",
                &[OSLO],
            ),
            case("<function=weather>{\"city\": \"Oslo\"}", "", &[OSLO]),
            case("<function=> words", "<function=> words", &[]),
        ],
    );
}

#[test]
fn function_xml() {
    check(
        "<function= <think>",
        &[
            case(
                "Text with <function and <b>.",
                "Text with <function and <b>.",
                &[],
            ),
            case(
                "Calls begin with <function=weather> and end. The rest.",
                "Calls begin with <function=weather> and end. The rest.",
                &[],
            ),
            case(
                "<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n</tool_call>",
                "",
                &[OSLO],
            ),
            case(
                "<tool_call>\n<function=now>\n</function>\n</tool_call>",
                "",
                &[NOW],
            ),
            case(
                "I look.\n\n<tool_call>\n<function=search>\n<parameter=query>\nline 1\n  line \"2\" </p>\n\n</parameter>\n<parameter=limit>\n5\n</parameter>\n</function>\n</tool_call>",
                "I look.",
                &[(
                    "search",
                    r#"{"query":"line 1\n  line \"2\" </p>\n","limit":5}"#,
                )],
            ),
            case(
                "<tool_call>\n<function=weather>\n<parameter=city>\n12345\n</parameter>\n<parameter=days>\n3\n</parameter>\n<parameter=metric>\nTrue\n</parameter>\n</function>\n</tool_call>",
                "",
                &[("weather", r#"{"city":"12345","days":3,"metric":true}"#)],
            ),
            case(
                "<tool_call>\n<function=search>\n<parameter=tags>\n[\"a\", 'b']\n</parameter>\n<parameter=filter>\n{\"a\": {\"b\": null}}\n</parameter>\n<parameter=limit>\nnull\n</parameter>\n</function>\n</tool_call>",
                "",
                &[(
                    "search",
                    r#"{"tags":["a","b"],"filter":{"a":{"b":null}},"limit":null}"#,
                )],
            ),
            case(
                "<tool_call>\n<function=now>\n</function>\n</tool_call>\n<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n</tool_call>",
                "",
                &[NOW, OSLO],
            ),
            case(
                "<function=weather>\n<parameter=city>Oslo</parameter>\n</function>",
                "",
                &[OSLO],
            ),
            case(
                "<tool_call><function=weather><parameter=city>\nOslo\n<parameter=days>\n2\n</function></tool_call>",
                "",
                &[("weather", r#"{"city":"Oslo","days":2}"#)],
            ),
            case(
                "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>",
                "",
                &[OSLO],
            ),
            case(
                "<tool_call>\n<function=weather>\n<parameter=city>\nOs",
                "",
                &[("weather", r#"{"city":"Os"#)],
            ),
            case(
                "<tool_call> what? </tool_call>",
                "<tool_call> what? </tool_call>",
                &[],
            ),
            case(
                "<tool_call>\n<function=search>\n<parameter=any>\n7\n</parameter>\n<parameter=new>\nx y\n</parameter>\n</function>\n</tool_call>",
                "",
                &[("search", r#"{"any":7,"new":"x y"}"#)],
            ),
            case(
                "<tool_call>\n<function=weather>\n<parameter=city>\n\n</parameter>\n</function>\n</tool_call>",
                "",
                &[("weather", r#"{"city":""}"#)],
            ),
        ],
    );
    check_after(
        "<function= <think>",
        "<|im_start|>assistant\n<think>\n",
        &[thought(
            "Oslo.\n</think>\n\n<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n</tool_call>",
            "Oslo.",
            "",
            &[OSLO],
        )],
    );
}

#[test]
fn glm() {
    check(
        "<arg_key> <think>",
        &[
            case("\nHello", "\nHello", &[]),
            case(
                "\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n</tool_call>",
                "",
                &[OSLO],
            ),
            case(
                "<tool_call>weather<arg_key>city</arg_key><arg_value>Oslo</arg_value></tool_call>",
                "",
                &[OSLO],
            ),
            case("<tool_call>now</tool_call>", "", &[NOW]),
            case(
                "<tool_call>now\n</tool_call><tool_call>now</tool_call>",
                "",
                &[NOW, NOW],
            ),
            case(
                "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>1</arg_value>\n<arg_key>days</arg_key>\n<arg_value>1</arg_value>\n<arg_key>metric</arg_key>\n<arg_value>false</arg_value>\n</tool_call>",
                "",
                &[("weather", r#"{"city":"1","days":1,"metric":false}"#)],
            ),
            case(
                "<tool_call>search<arg_key>filter</arg_key><arg_value>{\"a\": [1, 2]}</arg_value><arg_key>query</arg_key><arg_value>\n a\n</arg_value></tool_call>",
                "",
                &[(
                    "search",
                    "{\"filter\":{\"a\":[1,2]},\"query\":\"\\n a\\n\"}",
                )],
            ),
            thought(
                "\n<think>Hm, Oslo.</think>\nI look.\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n</tool_call>",
                "Hm, Oslo.",
                "I look.",
                &[OSLO],
            ),
            thought("<think></think>Hi", "", "Hi", &[]),
            case(
                "<tool_call>{\"a\": 1}</tool_call>",
                "<tool_call>{\"a\": 1}</tool_call>",
                &[],
            ),
            case(
                "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Os",
                "",
                &[("weather", r#"{"city":"Os"#)],
            ),
            case(
                "<tool_call>get.time-zone<arg_key>zone</arg_key><arg_value>a<b</arg_value></tool_call>x",
                "x",
                &[("get.time-zone", r#"{"zone":"a<b"}"#)],
            ),
        ],
    );
}

#[test]
fn lfm2() {
    check(
        "<|tool_call_start|>",
        &[
            case("How can I help?", "How can I help?", &[]),
            case(
                "<|tool_call_start|>[weather(city=\"Oslo\")]<|tool_call_end|>",
                "",
                &[OSLO],
            ),
            case(
                "<|tool_call_start|>[weather(city='Oslo')]<|tool_call_end|>I look.",
                "I look.",
                &[OSLO],
            ),
            case(
                "<|tool_call_start|> [now(), weather(city='Oslo', ), now()] <|tool_call_end|>",
                "",
                &[NOW, OSLO, NOW],
            ),
            case(
                "<|tool_call_start|>[search(query='it\\'s \"x\"', limit=None, score=0.50, tags=['a', 'b'], filter={'a': {'b': True}})]<|tool_call_end|>",
                "",
                &[(
                    "search",
                    r#"{"query":"it's \"x\"","limit":null,"score":0.50,"tags":["a","b"],"filter":{"a":{"b":true}}}"#,
                )],
            ),
            case(
                "<|tool_call_start|>[]<|tool_call_end|>Nothing.",
                "Nothing.",
                &[],
            ),
            case(
                "<|tool_call_start|>[weather(city=0130, days='3', metric=\"true\")]<|tool_call_end|>",
                "",
                &[("weather", r#"{"city":"0130","days":3,"metric":true}"#)],
            ),
            case(
                "<|tool_call_start|>[weather(\"Oslo\", 3)]<|tool_call_end|>",
                "",
                &[("weather", r#"{"city":"Oslo","days":3}"#)],
            ),
            case(
                "<|tool_call_start|>[search(query='sed -n '1,2p' f\n]', any=07)]<|tool_call_end|>",
                "",
                &[("search", r#"{"query":"sed -n '1,2p' f\n]","any":7}"#)],
            ),
            case(
                "<|tool_call_start|>[get.time-zone(zone='UTC')]<|tool_call_end|>",
                "",
                &[("get.time-zone", r#"{"zone":"UTC"}"#)],
            ),
            case(
                "<|tool_call_start|>[{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}]<|tool_call_end|>",
                "",
                &[OSLO],
            ),
            case(
                "<|tool_call_start|>weather(city='Oslo')<|tool_call_end|>",
                "",
                &[OSLO],
            ),
            case(
                "<|tool_call_start|>[oops<|tool_call_end|>",
                "<|tool_call_start|>[oops<|tool_call_end|>",
                &[],
            ),
            case(
                "<|tool_call_start|>[weather(city='Os",
                "",
                &[("weather", r#"{"city":"Os"#)],
            ),
        ],
    );
}

#[test]
fn gemma_4() {
    check(
        "<|tool_call> <|channel>",
        &[
            case("Hello!", "Hello!", &[]),
            case(
                "<|tool_call>call:weather{city:<|\"|>Oslo<|\"|>}<tool_call|>",
                "",
                &[OSLO],
            ),
            case("<|tool_call>call:now{}<tool_call|>", "", &[NOW]),
            case(
                "<|tool_call>call:now{}<tool_call|><|tool_call>call:weather{city:<|\"|>Oslo<|\"|>}<tool_call|>",
                "",
                &[NOW, OSLO],
            ),
            case(
                "I look. <|tool_call>call:weather{city:<|\"|>Oslo, \"No\"<|\"|>,days:42,metric:true}<tool_call|>",
                "I look.",
                &[(
                    "weather",
                    r#"{"city":"Oslo, \"No\"","days":42,"metric":true}"#,
                )],
            ),
            case(
                "<|tool_call>call:search{filter:{inner:<|\"|>v<|\"|>,list:[<|\"|>a]<|\"|>,1.5,null]},tags:[]}<tool_call|>",
                "",
                &[(
                    "search",
                    r#"{"filter":{"inner":"v","list":["a]",1.5,null]},"tags":[]}"#,
                )],
            ),
            case(
                "<|tool_call>call:search{<|\"|>any<|\"|>:{<|\"|>3<|\"|>:<|\"|>x<|\"|>}}<tool_call|>",
                "",
                &[("search", r#"{"any":{"3":"x"}}"#)],
            ),
            case(
                "<|tool_call>call:get.time-zone{zone:<|\"|>a\nb<|\"|>}<tool_call|>",
                "",
                &[("get.time-zone", r#"{"zone":"a\nb"}"#)],
            ),
            case(
                "<|tool_call>call:weather{city:Oslo, days:<|\"|>3<|\"|>}<tool_call|>",
                "",
                &[("weather", r#"{"city":"Oslo","days":3}"#)],
            ),
            case(
                "<|tool_call>call:weather{city:<|\"|>Os",
                "",
                &[("weather", r#"{"city":"Os"#)],
            ),
            case(
                "<|tool_call>hm<tool_call|>",
                "<|tool_call>hm<tool_call|>",
                &[],
            ),
            thought(
                "<|channel>thought\nOslo, then.\n<channel|>I look.<|tool_call>call:weather{city:<|\"|>Oslo<|\"|>}<tool_call|>",
                "Oslo, then.",
                "I look.",
                &[OSLO],
            ),
            thought("<|channel>thought\n<channel|>Hi.", "", "Hi.", &[]),
        ],
    );
    check_after(
        "<|tool_call> <|channel>",
        "…<tool_response|><|channel>thought\n",
        &[thought(
            "It rains.\n<channel|>Rain.",
            "It rains.",
            "Rain.",
            &[],
        )],
    );
}

#[test]
fn function_gemma() {
    check(
        "<start_function_call>",
        &[
            case("Hello!", "Hello!", &[]),
            case(
                "<start_function_call>call:weather{city:<escape>Oslo<escape>}<end_function_call>",
                "",
                &[OSLO],
            ),
            case(
                "<start_function_call>call:now{}<end_function_call>",
                "",
                &[NOW],
            ),
            case(
                "<start_function_call>call:weather{city:<escape>Oslo<escape>,days:<escape>3<escape>,metric:<escape>true<escape>}<end_function_call>",
                "",
                &[("weather", r#"{"city":"Oslo","days":3,"metric":true}"#)],
            ),
            case(
                "<start_function_call>call:weather{city:<escape>42<escape>,days:2}<end_function_call>",
                "",
                &[("weather", r#"{"city":"42","days":2}"#)],
            ),
            case(
                "<start_function_call>call:weather{city:<escape>Oslo<escape>days:<escape>1<escape>}<end_function_call>",
                "",
                &[("weather", r#"{"city":"Oslo","days":1}"#)],
            ),
            case(
                "<start_function_call>call:now{}<end_function_call><start_function_call>call:weather{city:<escape>Oslo<escape>}<end_function_call>",
                "",
                &[NOW, OSLO],
            ),
            case(
                "I look. <start_function_call>call:now{}<end_function_call><start_function_response>",
                "I look.\n\n<start_function_response>",
                &[NOW],
            ),
            case(
                "<start_function_call>call:search{tags:[<escape>a<escape>,<escape>b<escape>],filter:{x:1}}<end_function_call>",
                "",
                &[("search", r#"{"tags":["a","b"],"filter":{"x":1}}"#)],
            ),
            case(
                "<start_function_call>weather()",
                "<start_function_call>weather()",
                &[],
            ),
            case(
                "<start_function_call>call:search{query:<escape>a {b} \"c\"\\<escape>}",
                "",
                &[("search", r#"{"query":"a {b} \"c\"\\"}"#)],
            ),
        ],
    );
}

#[test]
fn deepseek() {
    check(
        "<｜tool▁call▁begin｜> <think>",
        &[
            case("Hello.", "Hello.", &[]),
            case(
                "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{\"city\": \"Oslo\"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
                "",
                &[OSLO],
            ),
            case(
                "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{\"city\": \"Oslo\"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
                "",
                &[OSLO],
            ),
            case(
                "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{\"city\": \"Oslo\"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
                "",
                &[NOW, OSLO],
            ),
            case(
                "I look.\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
                "I look.",
                &[NOW, NOW],
            ),
            case(
                "<｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜>",
                "",
                &[NOW],
            ),
            case(
                "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>search<｜tool▁sep｜>{\"query\": \"a",
                "",
                &[("search", r#"{"query":"a"#)],
            ),
            case(
                "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>search<｜tool▁sep｜>{\"limit\": 1<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
                "",
                &[("search", r#"{"limit":1"#)],
            ),
            case(
                "<｜tool▁calls▁begin｜>nothing",
                "<｜tool▁calls▁begin｜>nothing",
                &[],
            ),
            thought(
                "<think>\nOslo.\n</think>\n\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{\"city\": \"Oslo\"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
                "Oslo.",
                "",
                &[OSLO],
            ),
            case(
                "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>search\n```json\n{\n  \"query\": \"```\",\n  \"tags\": []\n}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>So.",
                "So.",
                &[("search", r#"{"query":"```","tags":[]}"#)],
            ),
        ],
    );
}

#[test]
fn kimi_k2() {
    check(
        "<|tool_call_begin|> <think>",
        &[
            case("Hello.", "Hello.", &[]),
            case(
                "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>{\"city\": \"Oslo\"}<|tool_call_end|><|tool_calls_section_end|>",
                "",
                &[OSLO],
            ),
            case(
                "I look. <|tool_calls_section_begin|><|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_call_begin|>functions.weather:1<|tool_call_argument_begin|> {\"city\": \"Oslo\"} <|tool_call_end|><|tool_calls_section_end|>",
                "I look.",
                &[NOW, OSLO],
            ),
            case(
                "<|tool_calls_section_begin|> <|tool_call_begin|> functions.now:3 <|tool_call_argument_begin|> <|tool_call_end|> <|tool_calls_section_end|>",
                "",
                &[NOW],
            ),
            case(
                "<|tool_calls_section_begin|><|tool_call_begin|>functions.get.time-zone:0<|tool_call_argument_begin|>{\"zone\": \"UTC\"}<|tool_call_end|><|tool_calls_section_end|>",
                "",
                &[("get.time-zone", r#"{"zone":"UTC"}"#)],
            ),
            case(
                "<|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>{}<|tool_call_end|>",
                "",
                &[NOW],
            ),
            case(
                "<|tool_calls_section_begin|><|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>{}<|tool_calls_section_end|>after",
                "after",
                &[NOW],
            ),
            case(
                "<|tool_calls_section_begin|><|tool_call_begin|>functions.search:0<|tool_call_argument_begin|>{\"query\": \"a b",
                "",
                &[("search", r#"{"query":"a b"#)],
            ),
            case(
                "<|tool_calls_section_begin|><|tool_call_begin|>functions.search:0<|tool_call_argument_begin|>words<|tool_call_end|><|tool_calls_section_end|>",
                "",
                &[("search", "words")],
            ),
            thought(
                "<think>I need it <|tool_calls_section_begin|><|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
                "I need it",
                "",
                &[NOW],
            ),
            case(
                "<|tool_calls_section_begin|>?",
                "<|tool_calls_section_begin|>?",
                &[],
            ),
        ],
    );
}

#[test]
fn harmony() {
    check(
        "<|channel|> <|message|>",
        &[
            case(
                "<|channel|>final<|message|>This is a test",
                "This is a test",
                &[],
            ),
            case("Plain text <b>.", "Plain text <b>.", &[]),
            thought(
                "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>So.<|return|>",
                "Hm.",
                "So.",
                &[],
            ),
            thought(
                "<|channel|>analysis<|message|>Weather tool.<|end|><|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{\"city\": \"Oslo\"}<|call|>",
                "Weather tool.",
                "",
                &[OSLO],
            ),
            case(
                "<|start|>assistant to=functions.weather<|channel|>commentary json<|message|>{\n\"city\": \"Oslo\"\n}<|call|>",
                "",
                &[OSLO],
            ),
            case(
                " to=functions.now<|channel|>commentary json<|message|>{}<|call|>",
                "",
                &[NOW],
            ),
            case(
                "<|channel|>commentary to=functions.now<|message|><|call|><|start|>assistant<|channel|>commentary to=functions.weather<|message|>{\"city\": \"Oslo\"}",
                "",
                &[NOW, OSLO],
            ),
            case(
                "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary to=functions.now json<|message|>{}<|call|><|start|>assistant<|channel|>final<|message|>Noon.",
                "I look.\n\nNoon.",
                &[NOW],
            ),
            case(
                "<|channel|>commentary to=functions.search<|message|>foo",
                "",
                &[("search", "foo")],
            ),
            case(
                "<|channel|>commentary to=functions.search json<|message|>{\"query\": \"<|x|> a\"",
                "",
                &[("search", r#"{"query":"<|x|> a""#)],
            ),
            thought(
                "<|channel|>analysis<|message|>One.<|end|><|start|>assistant<|channel|>analysis<|message|>Two.<|end|><|start|>assistant<|channel|>final<|message|>1 < 2 <|",
                "One.\n\nTwo.",
                "1 < 2 <|",
                &[],
            ),
            thought("<|channel|>analysis<|message|>cut off", "cut off", "", &[]),
            case(
                "<|channel|>analysis to=python code<|message|>print(1)<|call|>",
                "",
                &[("python", "print(1)")],
            ),
        ],
    );
}
