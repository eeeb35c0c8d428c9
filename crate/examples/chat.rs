//! Answers a question with a model from the Hub or a folder:
//! `cargo run --release -p jerboa --features https --example chat -- ORG/NAME QUESTION`.

use jerboa::{
    AbortFlag, ChatModel, DeviceOptions, GenerateRequest, HubOptions, ModelRef, Progress,
    RunOptions, Source, open_gpu,
};
use serde_json::json;
use std::io::Write;

async fn answer(name: &str, question: &str) -> jerboa::Result<()> {
    let gpu = open_gpu(&DeviceOptions::default()).await?;
    let model = ModelRef::parse(name)?;
    let options = HubOptions::default();
    let source = Source::open(&model, &options, AbortFlag::new(), Progress::silent()).await?;
    let mut model = ChatModel::load(gpu, &source, name, RunOptions::default()).await?;

    let request = json!({
        "messages": [{ "role": "user", "content": question }],
        "maxTokens": 256,
    });
    let request = GenerateRequest::from_json(&request.to_string())?;
    let result = model
        .generate(&request, &AbortFlag::new(), |event| {
            print!("{}", event.text);
            let _ = std::io::stdout().flush();
        })
        .await?;
    println!("\n{} tokens", result.completion_tokens);
    Ok(())
}

fn main() -> jerboa::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, question] = &arguments[..] else {
        eprintln!("usage: chat MODEL QUESTION");
        std::process::exit(2);
    };
    pollster::block_on(answer(name, question))
}
