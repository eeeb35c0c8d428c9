//! The native runner, for people who work on models: `cargo run --release -p jerboa --example run -- COMMAND`.

#[cfg(target_arch = "wasm32")]
fn main() {}

#[cfg(not(target_arch = "wasm32"))]
fn main() -> std::process::ExitCode {
    match native::run() {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            std::process::ExitCode::FAILURE
        }
    }
}

#[cfg(not(target_arch = "wasm32"))]
#[path = "bench/mod.rs"]
mod bench;

#[cfg(not(target_arch = "wasm32"))]
mod native {
    use super::bench;
    use jerboa::arch::Head;
    use jerboa::exec::{Encoder, Files, Model, Precision, RunOptions, Tokens, Tune};
    use jerboa::gpu::{Backend, DeviceOptions, Gpu};
    use jerboa::hub::{AbortFlag, HubOptions, ModelRef, Progress, Source};
    use jerboa::kernels::attention::Kv;
    use jerboa::task::{AnyModel, EmbedRequest, GenerateRequest, Loaded, Task};
    use jerboa::text::ChatInput;
    use pollster::block_on;
    use serde_json::{Value, json};
    use std::cell::RefCell;
    use std::collections::BTreeMap;
    use std::rc::Rc;
    use std::time::Instant;

    const USAGE: &str = "\
usage: run COMMAND --model DIR|FILE.gguf|URL|ORG/NAME [options]
  logits   --ids 1,2,3 [--all] --out FILE.safetensors   tensor `logits`, f32
  hidden   --ids 1,2,3 --out FILE.safetensors           tensor `last_hidden_state`, f32
  embed    --text TEXT | --file FILE (one text a line) [--task NAME] [--prompt TEXT] [--dim N] [--raw] [--json]
  rerank   --query TEXT --text TEXT | --file FILE [--instruction TEXT] [--json]
  generate --prompt TEXT | --chat FILE.json | --ids LIST [--max-new N] [--temperature T] [--top-k K] [--top-p P]
           [--min-p P] [--seed S] [--stop TEXT] [--ignore-eos] [--speculation prompt-lookup] [--json]
  tokenize --text TEXT
  render-chat --chat FILE.json
  plan                                                  graph, dispatches per decode token, bytes
  inspect [DIR|FILE.gguf|URL|ORG/NAME]                  family, encoding by tensor, sizes, what will run and what not
  load-bench                                            time of a load: network, transcoding, compiling; peak memory
  perplexity --text TEXT | --file FILE
  bench    [--shape NAME [--stored mlx4|f16]] [--prompt 128,1024] [--gen N] [--reps N] [--warm N] [--no-profile]
           the bench page's JSON, of --model or of a random checkpoint of one of the page's shapes
options: --weights auto|f32|f16|q8|q4   --embedding-weights auto|f32|f16|q8|q4   --kv auto|f32|f16|packed   --features no-f16,no-subgroups
         --tune auto|off|again   --context N   --chunk N   --max-buffer BYTES   --memory BYTES   --endpoint URL   --profile";

    type Result<T> = std::result::Result<T, String>;

    struct Args {
        command: String,
        values: BTreeMap<String, String>,
    }

    impl Args {
        fn parse() -> Result<Self> {
            let mut raw = std::env::args().skip(1).peekable();
            let command = raw.next().ok_or(USAGE)?;
            let mut values = BTreeMap::new();
            // The model may also stand right after the command.
            if let Some(model) = raw.next_if(|word| !word.starts_with("--")) {
                values.insert("model".to_string(), model);
            }
            while let Some(name) = raw.next() {
                let name = name.strip_prefix("--").ok_or_else(|| format!("unexpected '{name}'\n{USAGE}"))?;
                let value = raw.next_if(|v| !v.starts_with("--")).unwrap_or_default();
                values.insert(name.to_string(), value);
            }
            Ok(Self { command, values })
        }

        fn get(&self, name: &str) -> Option<&str> {
            self.values.get(name).map(String::as_str)
        }

        fn need(&self, name: &str) -> Result<&str> {
            self.get(name).ok_or_else(|| format!("--{name} is missing\n{USAGE}"))
        }

        fn number<T: std::str::FromStr>(&self, name: &str) -> Result<Option<T>> {
            let parse = |v: &str| v.parse().map_err(|_| format!("--{name}: '{v}' is not a number"));
            self.get(name).map(parse).transpose()
        }

        fn ids(&self) -> Result<Vec<u32>> {
            let parse = |v: &str| v.trim().parse().map_err(|_| format!("--ids: '{v}' is not a token id"));
            self.need("ids")?.split(',').map(parse).collect()
        }

        fn options(&self) -> Result<RunOptions> {
            let mut run = RunOptions {
                max_context: self.number("context")?,
                memory: self.number("memory")?,
                ..RunOptions::default()
            };
            if let Some(weights) = self.get("weights") {
                run.overrides.precision = Precision::from_name("--weights", weights).map_err(|e| e.to_string())?;
            }
            if let Some(tables) = self.get("embedding-weights") {
                let tables = Precision::from_name("--embedding-weights", tables);
                run.overrides.tables = tables.map_err(|e| e.to_string())?;
            }
            if let Some(tune) = self.get("tune") {
                run.tune = Tune::from_name("--tune", tune).map_err(|e| e.to_string())?;
            }
            if let Some(kv) = self.get("kv").filter(|k| *k != "auto") {
                run.overrides.kv = Some(Kv::from_name(kv).ok_or("--kv is auto, f32, f16 or packed")?);
            }
            if let Some(chunk) = self.number("chunk")? {
                run.chunk = chunk;
            }
            Ok(run)
        }

        fn device(&self) -> Result<DeviceOptions> {
            let features = self.get("features").unwrap_or("");
            let off = |name: &str| features.split(',').any(|f| f == name);
            let max_buffer_size = self.number("max-buffer")?;
            Ok(DeviceOptions {
                f16: !off("no-f16"),
                subgroups: !off("no-subgroups"),
                max_buffer_size,
                ..DeviceOptions::default()
            })
        }
    }

    pub fn run() -> Result<()> {
        let args = Args::parse()?;
        let text = |e: jerboa::Error| format!("{}: {e}", e.code());
        block_on(async {
            match args.command.as_str() {
                "logits" => save(&args, "logits", false).await,
                "hidden" => save(&args, "last_hidden_state", true).await,
                "generate" => generate(&args).await,
                "embed" => embed(&args).await,
                "rerank" => rerank(&args).await,
                "tokenize" => {
                    let loaded = loaded(&args).await?;
                    let ids = loaded.text.tokenizer().and_then(|t| t.encode(args.get("text").unwrap_or(""), true));
                    println!("{:?}", ids.map_err(text)?);
                    Ok(())
                }
                "render-chat" => {
                    let loaded = loaded(&args).await?;
                    let input =
                        ChatInput { add_generation_prompt: true, messages: chat(&args)?, ..ChatInput::default() };
                    print!("{}", loaded.text.render(&input).map_err(text)?.text);
                    Ok(())
                }
                "plan" => plan(&args).await,
                "inspect" => inspect(&args).await,
                "load-bench" => load_bench(&args).await,
                "perplexity" => perplexity(&args).await,
                "bench" => benchmark(&args).await,
                other => Err(format!("unknown command '{other}'\n{USAGE}")),
            }
        })
    }

    /// The source of `--model`.
    async fn source(args: &Args) -> Result<Source> {
        open(args, args.need("model")?, Progress::none()).await
    }

    async fn open(args: &Args, name: &str, progress: Progress) -> Result<Source> {
        // A folder or file on disk may be written without a leading './'.
        let local = std::path::Path::new(name).exists() && !name.starts_with(['/', '.']);
        let name = if local { format!("./{name}") } else { name.to_string() };
        let text = |e: jerboa::Error| format!("{}: {e}", e.code());
        let model = ModelRef::parse(&name).map_err(text)?;
        let options = HubOptions { endpoint: args.get("endpoint").map(String::from), ..HubOptions::default() };
        Source::open(&model, &options, AbortFlag::new(), progress).await.map_err(text)
    }

    async fn model(args: &Args) -> Result<Model> {
        let text = |e: jerboa::Error| format!("{}: {e}", e.code());
        let source = source(args).await?;
        let files = Files::open(&source, None).await.map_err(text)?;
        let gpu = jerboa_gpu(args).await?;
        Model::load_files(gpu, &source, files, args.options()?).await.map_err(text)
    }

    async fn jerboa_gpu(args: &Args) -> Result<Gpu> {
        Gpu::open(&args.device()?).await.map_err(|e| e.to_string())
    }

    async fn loaded(args: &Args) -> Result<Loaded> {
        let text = |e: jerboa::Error| format!("{}: {e}", e.code());
        let source = source(args).await?;
        let gpu = jerboa_gpu(args).await?;
        Loaded::load(gpu, &source, args.need("model")?, args.options()?).await.map_err(text)
    }

    fn chat(args: &Args) -> Result<Vec<Value>> {
        let file = args.need("chat")?;
        let text = std::fs::read_to_string(file).map_err(|e| format!("{file}: {e}"))?;
        let value: Value = serde_json::from_str(&text).map_err(|e| format!("{file}: {e}"))?;
        let list = value.get("messages").unwrap_or(&value).as_array().cloned();
        list.ok_or_else(|| format!("{file} is not a list of messages"))
    }

    /// The hidden states of a model that reads both ways; none for one that generates.
    async fn encoded(args: &Args, ids: &[u32]) -> Result<Option<Vec<f32>>> {
        let text = |e: jerboa::Error| format!("{}: {e}", e.code());
        let source = source(args).await?;
        let Some(config) = source.read_optional("config.json").await.map_err(text)? else { return Ok(None) };
        let config: Value = serde_json::from_slice(&config).map_err(|e| format!("config.json: {e}"))?;
        if !jerboa::arch::is_encoder(&config) {
            return Ok(None);
        }
        let files = Files::safetensors(&source, config).await.map_err(text)?;
        let gpu = jerboa_gpu(args).await?;
        let encoder = Encoder::load(gpu, &source, files, &Head::Hidden, None, args.options()?).await.map_err(text)?;
        let tokens = Tokens { ids: ids.to_vec(), ..Tokens::default() };
        encoder.submit(&[&tokens]).map_err(text)?.wait().await.map(Some).map_err(text)
    }

    async fn save(args: &Args, name: &str, hidden: bool) -> Result<()> {
        let ids = args.ids()?;
        let all = hidden || args.get("all").is_some();
        let encoded = if hidden { encoded(args, &ids).await? } else { None };
        let mut values = match encoded {
            Some(values) => values,
            None => model(args).await?.every_row(&ids, hidden).await.map_err(|e| e.to_string())?,
        };
        let cols = values.len() / ids.len();
        let rows = if all { ids.len() } else { 1 };
        values = values.split_off(values.len() - rows * cols);
        let bytes: &[u8] = bytemuck::cast_slice(&values);
        let view = safetensors::tensor::TensorView::new(safetensors::Dtype::F32, vec![rows, cols], bytes);
        let view = view.map_err(|e| e.to_string())?;
        let out = args.need("out")?;
        let data = safetensors::serialize([(name, view)], None).map_err(|e| e.to_string())?;
        std::fs::write(out, data).map_err(|e| format!("{out}: {e}"))
    }

    /// A model for what `task` says.
    async fn any_model(args: &Args, task: Task) -> Result<AnyModel> {
        let text = |e: jerboa::Error| format!("{}: {e}", e.code());
        let source = source(args).await?;
        let gpu = jerboa_gpu(args).await?;
        AnyModel::load(gpu, &source, args.need("model")?, Some(task), args.options()?).await.map_err(text)
    }

    /// The text of `--text`, or the lines of `--file`.
    fn texts(args: &Args) -> Result<Vec<String>> {
        let Some(file) = args.get("file") else { return Ok(vec![args.need("text")?.to_string()]) };
        let text = std::fs::read_to_string(file).map_err(|e| format!("{file}: {e}"))?;
        Ok(text.lines().map(str::to_string).collect())
    }

    async fn embed(args: &Args) -> Result<()> {
        let AnyModel::Embed(mut model) = any_model(args, Task::Embed).await? else { return Err(USAGE.into()) };
        let request = EmbedRequest {
            task: args.get("task").map(str::to_string),
            prompt: args.get("prompt").map(str::to_string),
            normalize: args.get("raw").map(|_| false),
            truncate_dim: args.number("dim")?,
        };
        let texts = texts(args)?;
        let start = Instant::now();
        let vectors = model.embed(&texts, &request, &AbortFlag::new(), |_, _| {}).await.map_err(|e| e.to_string())?;
        let seconds = start.elapsed().as_secs_f64();
        if args.get("json").is_some() {
            println!("{}", json!(vectors));
        } else {
            for vector in &vectors {
                let shown: Vec<String> = vector.iter().take(6).map(|v| format!("{v:.4}")).collect();
                println!("{} numbers: {} …", vector.len(), shown.join(" "));
            }
            eprintln!("{} texts in {:.1} ms, {:.1} texts/s", texts.len(), seconds * 1e3, texts.len() as f64 / seconds);
        }
        Ok(())
    }

    async fn rerank(args: &Args) -> Result<()> {
        let AnyModel::Rerank(mut model) = any_model(args, Task::Rerank).await? else { return Err(USAGE.into()) };
        let (query, documents) = (args.need("query")?, texts(args)?);
        let instruction = args.get("instruction");
        let scores =
            model.rerank(query, &documents, instruction, &AbortFlag::new()).await.map_err(|e| e.to_string())?;
        if args.get("json").is_some() {
            println!("{}", json!(scores));
        } else {
            scores.iter().zip(&documents).for_each(|(score, document)| println!("{score:.4} {document}"));
        }
        Ok(())
    }

    async fn generate(args: &Args) -> Result<()> {
        let mut request = json!({});
        let mut set = |name: &str, value: Value| request[name] = value;
        if args.get("ids").is_some() {
            set("ids", json!(args.ids()?));
        } else if args.get("chat").is_some() {
            set("messages", Value::Array(chat(args)?));
        } else {
            set("prompt", json!(args.need("prompt")?));
        }
        set("maxTokens", json!(args.number::<usize>("max-new")?.unwrap_or(128)));
        for (flag, name) in
            [("temperature", "temperature"), ("top-k", "topK"), ("top-p", "topP"), ("min-p", "minP"), ("seed", "seed")]
        {
            if let Some(value) = args.number::<f64>(flag)? {
                let whole = value.fract() == 0.0 && matches!(flag, "top-k" | "seed");
                set(name, if whole { json!(value as i64) } else { json!(value) });
            }
        }
        if let Some(stop) = args.get("stop") {
            set("stop", json!([stop]));
        }
        set("ignoreEos", json!(args.get("ignore-eos").is_some()));
        if let Some(speculation) = args.get("speculation") {
            set("speculation", json!(speculation));
        }
        let request = GenerateRequest::from_json(&request.to_string()).map_err(|e| e.to_string())?;
        let mut loaded = loaded(args).await?;
        let as_json = args.get("json").is_some();
        let outcome = loaded
            .generate(&request, &AbortFlag::new(), |event| {
                use std::io::Write;
                if !as_json {
                    print!("{}", event.text);
                    // A terminal that went away is no reason to stop.
                    let _ = std::io::stdout().flush();
                }
            })
            .await
            .map_err(|e| e.to_string())?;
        if as_json {
            println!("{}", serde_json::to_string(&outcome).map_err(|e| e.to_string())?);
        } else {
            let rate = (outcome.completion_tokens.max(1) - 1) as f64 * 1000.0 / outcome.decode_ms.max(1e-3);
            eprintln!(
                "\nprefill {:.1} ms, {} tokens at {rate:.1} tok/s",
                outcome.prefill_ms, outcome.completion_tokens
            );
            if outcome.drafted_tokens > 0 {
                eprintln!("{} tokens were guessed, {} of them held", outcome.drafted_tokens, outcome.accepted_tokens);
            }
        }
        Ok(())
    }

    fn bench_settings(args: &Args) -> Result<bench::Settings> {
        let number = |name: &str, otherwise: usize| Ok::<_, String>(args.number(name)?.unwrap_or(otherwise));
        let length = |v: &str| v.trim().parse().map_err(|_| format!("--prompt: '{v}' is not a length"));
        let stored = args.get("stored").unwrap_or("mlx4");
        if !matches!(stored, "mlx4" | "f16") {
            return Err(format!("--stored: '{stored}' is not mlx4 or f16"));
        }
        Ok(bench::Settings {
            shape: args.get("shape").map(ToOwned::to_owned),
            stored: stored.to_owned(),
            weights: args.get("weights").unwrap_or("auto").to_owned(),
            prompts: args.get("prompt").unwrap_or("128,1024").split(',').map(length).collect::<Result<_>>()?,
            tokens: number("gen", 256)?,
            runs: number("reps", 3)?,
            warm: number("warm", 16)?,
            profile: args.get("no-profile").is_none(),
        })
    }

    async fn benchmark(args: &Args) -> Result<()> {
        let settings = bench_settings(args)?;
        let made = settings.shape.as_ref().map(|shape| bench::make(shape, settings.stored == "mlx4")).transpose()?;
        let folder = made.as_ref().map(|made| made.path().to_string_lossy().into_owned());
        let name = folder.as_deref().map_or_else(|| args.need("model"), Ok)?;
        let mut options = args.options()?;
        options.max_context.get_or_insert(settings.prompts.iter().max().copied().unwrap_or(0) + settings.tokens + 64);
        let start = Instant::now();
        let phases: Rc<RefCell<BTreeMap<&'static str, f64>>> = Rc::default();
        let seen = phases.clone();
        let progress = Progress::new(move |event| {
            seen.borrow_mut().entry(event.phase.name()).or_insert(start.elapsed().as_secs_f64() * 1e3);
        });
        let source = open(args, name, progress).await?;
        let gpu = jerboa_gpu(args).await?;
        let loaded = Loaded::load(gpu, &source, name, options).await;
        let mut loaded = loaded.map_err(|e| format!("{}: {e}", e.code()))?;
        let load = bench::Load { ms: start.elapsed().as_secs_f64() * 1e3, phases: phases.take() };
        let name = settings.shape.as_deref().unwrap_or(name);
        let result = bench::bench(&mut loaded, name, &load, &settings).await?;
        if loaded.model.gpu.caps().software {
            eprintln!("This adapter computes on the processor: its numbers say nothing about the engine's speed.");
        }
        eprintln!("{}", bench::load_line(&result));
        println!("{result}");
        Ok(())
    }

    async fn plan(args: &Args) -> Result<()> {
        let model = model(args).await?;
        print!("{}", model.graph);
        println!("dispatches per decode token: {}", model.dispatches());
        let bytes = model.bytes;
        println!("bytes: weights {}, KV cache {}, activations {}", bytes.weights, bytes.kv, bytes.activations);
        println!("tuning: {}", json!(model.tuning));
        if args.get("profile").is_some() {
            for rows in [1, 128] {
                let profile = model.profile_kernels(rows.min(model.capacity), 0).await.map_err(|e| e.to_string())?;
                let dispatches: usize = profile.kernels.values().map(|share| share.dispatches).sum();
                println!("{} rows, {:.3} ms in {dispatches} dispatches", profile.rows, profile.ms);
                for (kernel, share) in profile.kernels {
                    println!("  {kernel}: {} dispatches, {:.3} ms", share.dispatches, share.ms);
                }
            }
        }
        Ok(())
    }

    async fn inspect(args: &Args) -> Result<()> {
        let files = Files::examine(&source(args).await?, None).await.map_err(|e| format!("{}: {e}", e.code()))?;
        print!("{}", files.inspect(args.options()?.overrides));
        Ok(())
    }

    /// Loads a model and says where the time went and what it took.
    async fn load_bench(args: &Args) -> Result<()> {
        use jerboa::gpu::Backend;
        let begin = Instant::now();
        let model = model(args).await?;
        let all_ms = begin.elapsed().as_secs_f64() * 1000.0;
        let load = model.load;
        let share = |ms: f64| (ms / all_ms * 1000.0).round() / 1000.0;
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let kilobytes = |line: &str| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok();
        println!(
            "{}",
            json!({
                "device": model.gpu.caps().description, "weights": model.precision.name(), "notes": model.notes,
                "all_ms": all_ms.round(), "load": load, "tuning": model.tuning,
                "tuning_share": share(load.tuning_ms),
                "network_share": share(load.reading_ms),
                "transcoding_share": share(load.writing_ms + load.transcoding_ms),
                "compiling_share": share(load.compiling_ms),
                "weight_bytes": model.bytes.weights, "gpu_bytes": model.gpu.created().bytes,
                "peak_gpu_bytes": load.peak_bytes,
                "peak_host_bytes": status.lines().find_map(kilobytes).map(|kb| kb * 1024),
            })
        );
        Ok(())
    }

    async fn perplexity(args: &Args) -> Result<()> {
        let text = match args.get("file") {
            Some(file) => std::fs::read_to_string(file).map_err(|e| format!("{file}: {e}"))?,
            None => args.need("text")?.to_string(),
        };
        let (perplexity, tokens) = loaded(args).await?.perplexity(&text).await.map_err(|e| e.to_string())?;
        println!("{}", json!({ "perplexity": perplexity, "tokens": tokens }));
        Ok(())
    }
}
