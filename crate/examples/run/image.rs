//! The `encode-image` command, which writes image embeddings for comparison with other engines, and
//! images at the placeholders of other commands' ids.

use crate::open::with_required_model;
use crate::options::{CliArgs, Result, format_error, value};
use crate::out;
use clap::{Arg, ArgAction, Command};
use jerboa::exec::{ModelFiles, Session, VisionEncoder, content_hash, load_processors};
use jerboa::task::ChatModel;
use jerboa::vision::decode::decode;
use jerboa::vision::{ImageProcessor, RgbImage, TileBuilder};
use safetensors::tensor::TensorView;
use serde_json::{Value, json};
use std::rc::Rc;
use std::time::Instant;

/// The option for image files.
pub fn images() -> Arg {
    value(
        "image",
        "FILE",
        "JPEG, PNG or WebP file; several files allowed, may be repeated",
    )
    .action(ArgAction::Append)
    .num_args(1..)
}

pub fn command(command: Command) -> Command {
    let out = value("out", "FILE", "Output file").required(true);
    with_required_model(command).args([images().required(true), out])
}

/// Adds image and video options to a command with token ids.
pub fn with_images(command: Command) -> Command {
    let frames = value(
        "frames",
        "FILE",
        "Frames of a video, in order; they follow the images",
    );
    let fps = value("fps", "N", "Frame rate of --frames").value_parser(clap::value_parser!(f64));
    command.args([
        images().help("Images for the placeholders in --ids, in order, or for --prompt"),
        frames.num_args(1..),
        fps.default_value("2"),
    ])
}

/// Reads the images of --frames. Returns them with their timestamps in seconds, followed by the
/// video's end.
fn frames(given: &CliArgs) -> Result<(Vec<RgbImage>, Vec<f64>)> {
    let fps = given.require::<f64>("fps")?;
    if !(fps > 0.0 && fps.is_finite()) {
        return Err("--fps must be greater than 0.".into());
    }

    let files = given.values::<String>("frames");
    let images: Vec<RgbImage> = files
        .iter()
        .map(|file: &String| {
            let bytes = std::fs::read(file).map_err(|e| format!("{file}: {e}"))?;
            decode(&bytes, true).map_err(|e| format!("{file}: {}", format_error(e)))
        })
        .collect::<Result<_>>()?;
    if images
        .iter()
        .any(|p| (p.width, p.height) != (images[0].width, images[0].height))
    {
        return Err("--frames: all frames must have the same size. Scale them first.".into());
    }
    Ok((
        images,
        (0..=files.len()).map(|frame| frame as f64 / fps).collect(),
    ))
}

/// Builds a conversation that asks about the images of --image and the video of --frames.
pub async fn image_question(
    given: &CliArgs,
    loaded: &mut ChatModel,
    question: &str,
) -> Result<Vec<Value>> {
    let source = Rc::new(given.source().await?);
    loaded
        .enable_vision(source, None, given.run_options()?)
        .await
        .map_err(format_error)?;
    let sight = loaded.vision().map_err(format_error)?;
    let mut content = Vec::new();
    for file in given.values::<String>("image") {
        let of_file = |e: jerboa::Error| format!("{file}: {}", format_error(e));
        let bytes = std::fs::read(&file).map_err(|e| format!("{file}: {e}"))?;
        let seen = sight
            .encode(sight.image_from_file(&bytes).map_err(of_file)?, &[])
            .await
            .map_err(of_file)?;
        eprintln!("{file}: {} tokens, {:.1} ms", seen.tokens, seen.ms);
        content.push(json!({ "type": "image", "imageId": seen.id }));
    }
    let (frames, seconds) = frames(given)?;
    if let [first, ..] = &frames[..] {
        let mut intake = sight
            .video_intake(first.width, first.height, frames.len())
            .map_err(format_error)?;
        frames
            .iter()
            .try_for_each(|frame| intake.push(&frame.rgb, 3))
            .map_err(format_error)?;
        let seen = sight.encode(intake, &seconds).await.map_err(format_error)?;
        eprintln!(
            "{} frames: {} tokens, {:.1} ms",
            frames.len(),
            seen.tokens,
            seen.ms
        );
        content.push(json!({ "type": "video", "imageId": seen.id }));
    }
    content.push(json!({ "type": "text", "text": question }));
    Ok(vec![json!({ "role": "user", "content": content })])
}

/// Inserts the images of --image at the placeholders of the ids.
pub async fn fill_placeholders(
    given: &CliArgs,
    session: &Session,
    ids: Vec<u32>,
) -> Result<Vec<u32>> {
    let files = given.values::<String>("image");
    let (frames, seconds) = frames(given)?;

    if files.is_empty() && frames.is_empty() {
        return Ok(ids);
    }
    let source = given.source().await?;
    let parts = ModelFiles::open_unchecked(&source, None)
        .await
        .map_err(format_error)?;
    let config = parts.config.clone();
    let mut encoder = VisionEncoder::load(session.gpu(), &source, parts, given.run_options()?)
        .await
        .map_err(format_error)?;
    let (processor, videos) = load_processors(&source, &config, &encoder.tower)
        .await
        .map_err(format_error)?;
    let named = |names: [&str; 2]| {
        names
            .iter()
            .find_map(|name| Some(session.model().config.get(name)?.as_u64()? as u32))
    };
    let image = named(["image_token_id", "image_token_index"]).ok_or(
        "config.json: 'image_token_id' is missing. Use the config.json of the checkpoint.",
    )?;
    let mut soft_tokens = Vec::new();
    for file in files {
        let (_, tiles) = read_image(&file, &processor)?;
        let content = content_hash(&tiles, &[]);
        let known = session.soft_token_cache().borrow_mut().find(content);
        let first_id = match known {
            Some(first) => first,
            None => {
                let encoded = encoder
                    .encode(session.gpu(), &tiles, 1, &processor)
                    .await
                    .map_err(format_error)?;
                session
                    .soft_token_cache()
                    .borrow_mut()
                    .add(content, encoded)
            }
        };
        soft_tokens.push((image, first_id));
    }
    if let [first, ..] = &frames[..] {
        let videos =
            videos.ok_or("this model does not support video. Use a model with video input.")?;
        let layout = videos
            .layout(first.width, first.height, frames.len())
            .map_err(format_error)?;
        let mut intake = TileBuilder::new(&videos.processor, layout);
        frames
            .iter()
            .try_for_each(|frame| intake.push(&frame.rgb, 3))
            .map_err(format_error)?;
        let tiles = intake.finish().map_err(format_error)?;
        let encoded = encoder
            .encode(
                session.gpu(),
                &tiles,
                videos.temporal_patch(),
                &videos.processor,
            )
            .await
            .map_err(format_error)?;
        let encoded = encoded.at_interval(videos.interval(&seconds));
        let first_id = session
            .soft_token_cache()
            .borrow_mut()
            .add(content_hash(&tiles, &seconds), encoded);
        // A family without a video token uses image placeholders for frames.
        soft_tokens.push((
            named(["video_token_id", "video_token_index"]).unwrap_or(image),
            first_id,
        ));
    }
    session
        .splice_soft_tokens(&ids, &soft_tokens)
        .map_err(format_error)
}

/// Reads an image file. Returns its width and height, and its tiles.
fn read_image(file: &str, processor: &ImageProcessor) -> Result<((usize, usize), Vec<RgbImage>)> {
    let bytes = std::fs::read(file).map_err(|e| format!("{file}: {e}"))?;
    let of_file = |e: jerboa::Error| format!("{file}: {}", format_error(e));
    let image = decode(&bytes, processor.transparent_to_white).map_err(of_file)?;
    Ok((
        (image.width, image.height),
        processor.tiles(&image).map_err(of_file)?,
    ))
}

pub async fn run(given: &CliArgs) -> Result<()> {
    let source = given.source().await?;
    let files = ModelFiles::open_unchecked(&source, None)
        .await
        .map_err(format_error)?;
    let gpu = given.gpu().await?;
    let options = given.run_options()?;

    let config = files.config.clone();
    let mut vision = VisionEncoder::load(&gpu, &source, files, options)
        .await
        .map_err(format_error)?;
    let (processor, _) = load_processors(&source, &config, &vision.tower)
        .await
        .map_err(format_error)?;
    let cols = vision.cols();
    let mut pixels = Vec::new();

    // The embeddings, and the features for deeper layers of the language model (DeepStack).
    let mut embeds: Vec<Vec<f32>> = vec![Vec::new(); vision.tower.features];
    let order = processor.order(vision.tower.patch);
    for file in given.values::<String>("image") {
        let ((width, height), tiles) = read_image(&file, &processor)?;
        let start = Instant::now();
        let encoded = vision
            .encode(&gpu, &tiles, 1, &processor)
            .await
            .map_err(format_error)?;
        for row in encoded
            .read(&gpu)
            .await
            .map_err(format_error)?
            .chunks(cols * vision.tower.features)
        {
            row.chunks(cols)
                .zip(&mut embeds)
                .for_each(|(part, all)| all.extend(part));
        }
        let ms = start.elapsed().as_secs_f64() * 1e3;
        pixels.extend(
            tiles
                .iter()
                .flat_map(|tile| processor.rows(&[tile], &order, &order.tile_positions(tile))),
        );
        out::print_line(format_args!(
            "{file}: {width}x{height}, {} tokens, {ms:.1} ms",
            encoded.tokens
        ));
    }
    let mut views = Vec::new();
    for (i, values) in embeds.iter().enumerate() {
        let name = if i == 0 {
            "image_embeds".to_string()
        } else {
            format!("deepstack.{}", i - 1)
        };
        views.push((name, view(values, cols)?));
    }
    views.push(("pixel_values".to_string(), view(&pixels, order.cols())?));
    let data = safetensors::serialize(views, None).map_err(|e| e.to_string())?;
    let out: String = given.require("out")?;
    std::fs::write(&out, data).map_err(|e| format!("{out}: {e}"))
}

fn view(values: &[f32], cols: usize) -> Result<TensorView<'_>> {
    let shape = vec![values.len() / cols, cols];
    TensorView::new(safetensors::Dtype::F32, shape, bytemuck::cast_slice(values))
        .map_err(|e| e.to_string())
}
