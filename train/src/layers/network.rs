//! A network on the device: predicts, fits, and exchanges weights.

use super::build::{self, Elements, Initial, Layers, NetworkWeight, count};
use super::fields::{refuse, shape_of};
use super::fit::{FitOptions, Loss};
use super::record::{LAYOUT, NetworkBuffer, Recorder};
use crate::kernel::{TrainLaunch, TrainPipelines};
use crate::kernels::loss::{IGNORED, add_losses, cross_entropy, mean_square};
use crate::kernels::update::{
    HYPER_BYTES, UpdateBuffers, UpdatedWeight, square_sums, update_launches,
};
use crate::kernels::{contiguous, fill};
use crate::random::{shuffled, uniform};
use crate::tensors::NamedTensor;
use jerboa::gpu::{Backend, Buffer, BufferUsage, Command, Gpu, Program};
use jerboa::{Error, Result};
use serde_json::Value;
use std::collections::HashMap;
use std::rc::Rc;

/// Steps between readbacks of the loss.
const STEPS_PER_READBACK: usize = 16;
/// WebGPU's limit of workgroups per dimension.
const MAX_GROUPS: u32 = 65_535;

/// What a pass over a batch ends with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Pass {
    /// The output.
    Output,
    /// The loss.
    Evaluation(Loss),
    /// The loss and the gradients of the weights.
    Training(Loss),
    /// The gradients of the weights and of the input, from that of the output.
    Gradients,
}

/// A recorded pass.
struct Recorded {
    program: Program,
    output: NetworkBuffer,
    /// The gradient of the input.
    dx: Option<NetworkBuffer>,
}

/// The gradients of a batch.
#[derive(Debug, Clone)]
pub struct NetworkGradients {
    /// The output.
    pub output: Vec<f32>,
    /// The gradient of the input; `None` for ids.
    pub input: Option<Vec<f32>>,
    /// The gradient of each weight.
    pub weights: Vec<NamedTensor>,
}

/// Progress of a fit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FitProgress {
    /// Epoch, from 0.
    pub epoch: usize,
    /// Steps done.
    pub step: usize,
    /// Steps of the fit.
    pub steps: usize,
    /// Mean loss of the epoch so far.
    pub loss: f32,
    /// Whether the epoch is done.
    pub is_epoch_end: bool,
}

/// A fit that goes on step by step.
pub struct FitRun {
    options: FitOptions,
    examples: Vec<u32>,
    targets: Vec<u32>,
    count: usize,
    order: Vec<usize>,
    step: usize,
    /// Labels or elements that count, of the epoch so far.
    counted: usize,
    /// Zeroes the gradients, and updates the weights.
    updates: Option<[Program; 2]>,
}

/// A network of layers on the device.
pub struct Network {
    gpu: Rc<Gpu>,
    layers: Layers,
    input: Vec<usize>,
    buffers: HashMap<NetworkBuffer, Buffer>,
    /// Examples that the buffers have room for.
    capacity: usize,
    pipelines: TrainPipelines,
    programs: HashMap<(Pass, usize), Recorded>,
    clear_loss: Option<Program>,
}

impl Network {
    /// Builds a network from its description: `{ input: [sizes], layers: [layers] }`.
    ///
    /// # Errors
    /// `Request` that names the layer, for a description that does not fit; device errors.
    pub fn new(gpu: Rc<Gpu>, description: &Value, seed: u64) -> Result<Self> {
        let input = shape_of(&description["input"]).ok_or_else(|| {
            let reason = "it must be the shape of one example: an array of one to eight whole numbers above 0.";
            refuse("input", reason)
        })?;
        let layers = description["layers"].as_array();
        let layers = layers.filter(|layers| !layers.is_empty());
        let layers = layers.ok_or_else(|| refuse("layers", "it must be an array of layers."))?;
        let layers = build::build(&input, layers)?;
        let mut network = Self {
            gpu,
            layers,
            input,
            buffers: HashMap::new(),
            capacity: 0,
            pipelines: TrainPipelines::default(),
            programs: HashMap::new(),
            clear_loss: None,
        };
        network.initialize(seed)?;
        Ok(network)
    }

    /// Creates the weights with PyTorch's distributions.
    fn initialize(&mut self, seed: u64) -> Result<()> {
        for index in 0..self.layers.weights.len() {
            let weight = &self.layers.weights[index];
            let values = match weight.initial {
                Initial::Uniform(bound) => uniform(count(&weight.shape), bound, seed, index),
                Initial::Ones => vec![1.0; count(&weight.shape)],
                Initial::Zeros => vec![0.0; count(&weight.shape)],
            };
            let bytes = stored(weight) * 4;
            self.create(NetworkBuffer::Weight(index), bytes)?;
            self.write_weight(index, &values);
        }
        Ok(())
    }

    /// Shape of an example.
    pub fn input_shape(&self) -> &[usize] {
        &self.input
    }

    /// Shape of an example's output.
    pub fn output_shape(&self) -> &[usize] {
        &self.layers.output
    }

    /// Whether the input has f32 numbers, or ids below a count.
    pub fn input_elements(&self) -> Elements {
        self.layers.input_elements
    }

    /// The weights: names and shapes.
    pub fn weight_list(&self) -> &[NetworkWeight] {
        &self.layers.weights
    }

    fn create(&mut self, key: NetworkBuffer, bytes: usize) -> Result<()> {
        let bytes = bytes.max(4) as u64;
        if self.buffers.get(&key).is_none_or(|old| old.size() < bytes) {
            let buffer = self.gpu.buffer("network", bytes, BufferUsage::Storage)?;
            self.buffers.insert(key, buffer);
        }
        Ok(())
    }

    fn write_weight(&self, index: usize, values: &[f32]) {
        let weight = &self.layers.weights[index];
        let buffer = &self.buffers[&NetworkBuffer::Weight(index)];
        let [cols, stride] = row_of(weight);
        let mut padded = vec![0.0; stored(weight)];
        let rows = padded.chunks_exact_mut(stride);
        for (row, own) in rows.zip(values.chunks_exact(cols)) {
            row[..cols].copy_from_slice(own);
        }
        self.gpu.write(buffer, 0, bytemuck::cast_slice(&padded));
    }

    async fn read(&self, buffer: NetworkBuffer, elements: usize) -> Result<Vec<f32>> {
        let bytes = elements as u64 * 4;
        let bytes = self.gpu.read(&self.buffers[&buffer], 0, bytes).await?;
        Ok(bytemuck::pod_collect_to_vec(&bytes))
    }

    async fn read_weights(&self, of: fn(usize) -> NetworkBuffer) -> Result<Vec<NamedTensor>> {
        let mut tensors = Vec::with_capacity(self.layers.weights.len());
        for (index, weight) in self.layers.weights.iter().enumerate() {
            let [cols, stride] = row_of(weight);
            let values = self.read(of(index), stored(weight)).await?;
            let rows = values.chunks_exact(stride);
            tensors.push(NamedTensor {
                name: weight.name.clone(),
                shape: weight.shape.clone(),
                values: rows.flat_map(|row| row[..cols].to_vec()).collect(),
            });
        }
        Ok(tensors)
    }

    /// Reads all weights.
    ///
    /// # Errors
    /// Device errors.
    pub async fn weights(&self) -> Result<Vec<NamedTensor>> {
        self.read_weights(NetworkBuffer::Weight).await
    }

    /// Replaces the weights that `tensors` has.
    ///
    /// # Errors
    /// `Request` for a name or a shape that the network does not have; nothing changes then.
    pub fn set_weights(&self, tensors: &[NamedTensor]) -> Result<()> {
        let mut found = Vec::with_capacity(tensors.len());
        for tensor in tensors {
            let own = self.layers.weights.iter();
            let index = own.clone().position(|weight| weight.name == tensor.name);
            let index = index.ok_or_else(|| {
                let names: Vec<&str> = own.map(|weight| &weight.name[..]).collect();
                let reason = format!(
                    "the network has no weight '{}'. Use its names: {}.",
                    tensor.name,
                    names.join(", ")
                );
                refuse("weights", &reason)
            })?;
            let weight = &self.layers.weights[index];
            if weight.shape != tensor.shape || count(&weight.shape) != tensor.values.len() {
                let reason = format!(
                    "'{}' must have the shape {:?}, not {:?} with {} values.",
                    weight.name,
                    weight.shape,
                    tensor.shape,
                    tensor.values.len()
                );
                return Err(refuse("weights", &reason));
            }
            found.push(index);
        }
        for (index, tensor) in found.into_iter().zip(tensors) {
            self.write_weight(index, &tensor.values);
        }
        Ok(())
    }

    /// Checks examples, 32-bit words, and returns their number.
    fn examples(&self, words: &[u32]) -> Result<usize> {
        let size = count(&self.input);
        if words.is_empty() || !words.len().is_multiple_of(size) {
            let reason = format!(
                "it has {} elements, which is not a positive multiple of {size}, the size of an example of shape {:?}.",
                words.len(),
                self.input
            );
            return Err(refuse("x", &reason));
        }
        if let Elements::Ids(rows) = self.layers.input_elements
            && let Some(id) = words.iter().find(|id| **id as usize >= rows)
        {
            let reason = format!("the id {id} is outside the embedding of {rows} rows.");
            return Err(refuse("x", &reason));
        }
        Ok(words.len() / size)
    }

    /// Elements of the targets of one example.
    fn target_size(&self, loss: Loss) -> usize {
        let output = &self.layers.output;
        match loss {
            Loss::MeanSquare => count(output),
            Loss::CrossEntropy => count(&output[..output.len() - 1]),
        }
    }

    /// Checks the targets of `examples` examples.
    fn targets(&self, words: &[u32], examples: usize, loss: Loss) -> Result<()> {
        let size = self.target_size(loss);
        if words.len() != examples * size {
            let what = match loss {
                Loss::MeanSquare => "values",
                Loss::CrossEntropy => "labels",
            };
            let reason = format!(
                "it has {} {what}, but {examples} examples with output shape {:?} need {}.",
                words.len(),
                self.layers.output,
                examples * size
            );
            return Err(refuse("y", &reason));
        }
        if loss == Loss::CrossEntropy {
            let classes = self.layers.output.last().copied().unwrap_or(1);
            let is_wrong = |label: &&u32| **label as usize >= classes && **label != IGNORED;
            if let Some(label) = words.iter().find(is_wrong) {
                let reason =
                    format!("the label {label} is outside the {classes} classes of the output.");
                return Err(refuse("y", &reason));
            }
        }
        Ok(())
    }

    /// Labels or elements of targets that count in a loss.
    fn counted(words: &[u32], loss: Loss) -> usize {
        match loss {
            Loss::MeanSquare => words.len(),
            Loss::CrossEntropy => words.iter().filter(|label| **label != IGNORED).count(),
        }
    }

    /// Makes room for batches of up to `batch` examples.
    fn reserve(&mut self, batch: usize) -> Result<()> {
        if batch <= self.capacity {
            return Ok(());
        }
        let output = count(&self.layers.output);
        for (key, elements) in [
            (NetworkBuffer::Input, count(&self.input) * batch),
            (NetworkBuffer::Targets, output * batch),
            (NetworkBuffer::RowLosses, output * batch),
            (NetworkBuffer::Loss, 1),
            (NetworkBuffer::Hyper, HYPER_BYTES / 4),
            (NetworkBuffer::Clip, 2),
        ] {
            self.create(key, elements * 4)?;
        }
        self.programs.clear();
        self.capacity = batch;
        Ok(())
    }

    /// Records a pass over `batch` examples.
    async fn prepare(&mut self, pass: Pass, batch: usize) -> Result<()> {
        self.reserve(batch)?;
        if self.programs.contains_key(&(pass, batch)) {
            return Ok(());
        }
        // Buffers fit the largest batch, so that they stay.
        let mut largest = Recorder::new(&self.layers.weights, self.capacity);
        record(&self.layers, pass, &mut largest, self.capacity);
        let mut recorder = Recorder::new(&self.layers.weights, batch);
        let (output, dx) = record(&self.layers, pass, &mut recorder, batch);
        let launches = recorder.launches;
        if launches
            .iter()
            .any(|launch| launch.grid.iter().any(|size| *size > MAX_GROUPS))
        {
            let reason = "a batch of this size needs more workgroups than WebGPU allows. Use a smaller 'batchSize'.";
            return Err(refuse("batchSize", reason));
        }
        let [sizes, spans] = [largest.sizes, largest.spans];
        let mut has_grown = false;
        for (index, elements) in sizes.into_iter().enumerate() {
            let key = NetworkBuffer::Temporary(index);
            let old = self.buffers.get(&key).map(Buffer::size);
            self.create(key, elements * 4)?;
            has_grown |= old.is_some_and(|old| old < elements as u64 * 4);
        }
        for steps in spans {
            self.write_spans(steps)?;
        }
        if has_grown {
            self.programs.clear();
        }
        if matches!(pass, Pass::Training(_) | Pass::Gradients) {
            for index in 0..self.layers.weights.len() {
                let bytes = stored(&self.layers.weights[index]) * 4;
                self.create(NetworkBuffer::Gradient(index), bytes)?;
            }
        }
        let program = self.program("network", launches).await?;
        let recorded = Recorded {
            program,
            output,
            dx,
        };
        self.programs.insert((pass, batch), recorded);
        Ok(())
    }

    async fn program(
        &mut self,
        label: &str,
        launches: Vec<TrainLaunch<NetworkBuffer>>,
    ) -> Result<Program> {
        self.pipelines.compile(&self.gpu, launches.iter()).await?;
        let mut steps = Vec::with_capacity(launches.len());
        for launch in launches {
            let launch = launch.map(|buffer| self.buffers[buffer].clone());
            steps.extend(launch.dispatch(&self.pipelines)?);
        }
        self.gpu.program(label, steps)
    }

    /// First and end row of the sequences of a batch.
    fn write_spans(&mut self, steps: usize) -> Result<()> {
        let key = NetworkBuffer::Spans(steps);
        let rows = self.capacity * steps;
        self.create(key, rows * 8)?;
        let span = |row: usize| {
            let first = row / steps * steps;
            [first as u32, (first + steps) as u32]
        };
        let spans: Vec<[u32; 2]> = (0..rows).map(span).collect();
        let words = spans.as_flattened();
        self.gpu
            .write(&self.buffers[&key], 0, bytemuck::cast_slice(words));
        Ok(())
    }

    fn write(&self, key: NetworkBuffer, words: &[u32]) {
        self.gpu
            .write(&self.buffers[&key], 0, bytemuck::cast_slice(words));
    }

    fn submit(&self, programs: &[&Program]) -> Result<()> {
        let mut work = Vec::with_capacity(programs.len());
        for program in programs {
            let grids = None;
            work.push(Command::Run { program, grids });
        }
        self.gpu.submit(&work)
    }

    /// Computes the outputs of examples, in batches.
    ///
    /// # Errors
    /// `Request` for examples of another shape; device errors.
    pub async fn predict(&mut self, x: &[u32], batch_size: usize) -> Result<Vec<f32>> {
        let all = self.examples(x)?;
        let size = count(&self.input);
        let output = count(&self.layers.output);
        let batch_size = batch_size.clamp(1, all);
        let mut predictions = Vec::with_capacity(all * output);
        for batch in x.chunks(batch_size * size) {
            let examples = batch.len() / size;
            self.prepare(Pass::Output, examples).await?;
            let recorded = &self.programs[&(Pass::Output, examples)];
            self.write(NetworkBuffer::Input, batch);
            self.submit(&[&recorded.program])?;
            predictions.extend(self.read(recorded.output, examples * output).await?);
        }
        self.gpu.check().await?;
        Ok(predictions)
    }

    /// Computes the mean loss of examples, in batches.
    ///
    /// # Errors
    /// `Request` for examples or targets that do not fit; device errors.
    pub async fn evaluate(
        &mut self,
        x: &[u32],
        y: &[u32],
        loss: Loss,
        batch_size: usize,
    ) -> Result<f32> {
        let all = self.examples(x)?;
        self.targets(y, all, loss)?;
        let [size, target] = [count(&self.input), self.target_size(loss)];
        let batch_size = batch_size.clamp(1, all);
        let pass = Pass::Evaluation(loss);
        self.reserve(batch_size)?;
        self.clear_loss().await?;
        let batches = x.chunks(batch_size * size);
        for (x, y) in batches.zip(y.chunks(batch_size * target)) {
            let examples = x.len() / size;
            self.prepare(pass, examples).await?;
            self.write(NetworkBuffer::Input, x);
            self.write(NetworkBuffer::Targets, y);
            self.write_hyper(&FitOptions::default(), 1, 1);
            self.submit(&[&self.programs[&(pass, examples)].program])?;
        }
        let sum = self.read(NetworkBuffer::Loss, 1).await?[0];
        self.gpu.check().await?;
        Ok(sum / Self::counted(y, loss).max(1) as f32)
    }

    async fn clear_loss(&mut self) -> Result<()> {
        if self.clear_loss.is_none() {
            let launches = vec![fill(1, NetworkBuffer::Loss)];
            self.clear_loss = Some(self.program("clear", launches).await?);
        }
        let programs: Vec<&Program> = self.clear_loss.iter().collect();
        self.submit(&programs)
    }

    fn write_hyper(&self, options: &FitOptions, counted: usize, step: usize) {
        let hyper = options.optimizer.hyper(
            step as i32,
            counted.max(1),
            options.learning_rate,
            options.weight_decay,
            options.max_norm,
        );
        let buffer = &self.buffers[&NetworkBuffer::Hyper];
        self.gpu.write(buffer, 0, bytemuck::cast_slice(&hyper));
    }

    /// The program that zeroes the gradients, and the one that updates the weights.
    async fn updates(&mut self, options: &FitOptions) -> Result<[Program; 2]> {
        use NetworkBuffer::{Clip, Gradient, Hyper, SquareSums, State, Weight};
        let states = 0..options.optimizer.states();
        let weights = self.layers.weights.iter().enumerate();
        let weights: Vec<UpdatedWeight<NetworkBuffer>> = weights
            .map(|(index, weight)| UpdatedWeight {
                count: stored(weight),
                weight: Weight(index),
                gradient: Gradient(index),
                states: states.clone().map(|state| State(index, state)).collect(),
            })
            .collect();
        let mut fresh = Vec::new();
        for weight in &weights {
            self.create(weight.gradient, weight.count * 4)?;
            for state in &weight.states {
                self.create(*state, weight.count * 4)?;
                fresh.push(fill(weight.count, *state));
            }
        }
        let sums: usize = weights.iter().map(|weight| square_sums(weight.count)).sum();
        self.create(SquareSums, sums * 4)?;
        let fresh = self.program("optimizer", fresh).await?;
        self.submit(&[&fresh])?;
        let clear = self.clear_gradients().await?;
        let shared = UpdateBuffers {
            square_sums: SquareSums,
            clip: Clip,
            hyper: Hyper,
        };
        let decay = options.weight_decay != 0.0;
        let launches = update_launches(options.optimizer, decay, &weights, &shared);
        Ok([clear, self.program("update", launches).await?])
    }

    async fn clear_gradients(&mut self) -> Result<Program> {
        let weights = self.layers.weights.iter().enumerate();
        let launches = weights
            .map(|(index, weight)| fill(stored(weight), NetworkBuffer::Gradient(index)))
            .collect();
        self.program("clear", launches).await
    }

    /// Starts a fit with a new optimizer; [`Self::advance`] goes on with it.
    ///
    /// # Errors
    /// `Request` for examples or targets that do not fit, and for a network without weights.
    pub fn start(&self, x: Vec<u32>, y: Vec<u32>, options: FitOptions) -> Result<FitRun> {
        let all = self.examples(&x)?;
        self.targets(&y, all, options.loss)?;
        if self.layers.weights.is_empty() {
            return Err(refuse(
                "layers",
                "no layer has weights to fit. Add a dense or another layer with weights.",
            ));
        }
        if Self::counted(&y, options.loss) == 0 {
            return Err(refuse(
                "y",
                "no label contributes to the loss: all are ignored (-1). Add labels from 0.",
            ));
        }
        Ok(FitRun {
            options: FitOptions {
                batch_size: options.batch_size.min(all),
                ..options
            },
            examples: x,
            targets: y,
            count: all,
            order: Vec::new(),
            step: 0,
            counted: 0,
            updates: None,
        })
    }

    /// Trains up to 16 steps, at most to the end of the epoch; `None` when the fit is done.
    ///
    /// # Errors
    /// `Request` for a loss that is not finite; device errors.
    pub async fn advance(&mut self, run: &mut FitRun) -> Result<Option<FitProgress>> {
        let options = run.options;
        let per_epoch = run.count.div_ceil(options.batch_size);
        let steps = per_epoch * options.epochs;
        if run.step == steps {
            return Ok(None);
        }
        self.reserve(options.batch_size)?;
        if run.updates.is_none() {
            run.updates = Some(self.updates(&options).await?);
        }
        let epoch = run.step / per_epoch;
        let first = run.step % per_epoch;
        if first == 0 {
            run.order = if options.shuffle {
                shuffled(run.count, options.seed, epoch)
            } else {
                (0..run.count).collect()
            };
            run.counted = 0;
            self.clear_loss().await?;
        }
        let last = per_epoch.min(first + STEPS_PER_READBACK);
        for index in first..last {
            self.step(run, index).await?;
        }
        let sum = self.read(NetworkBuffer::Loss, 1).await?[0];
        self.gpu.check().await?;
        let loss = sum / run.counted.max(1) as f32;
        if !loss.is_finite() {
            return Err(Error::Request {
                parameter: "learningRate".into(),
                reason: format!(
                    "the loss of epoch {epoch} is not finite (learning rate {}). Use a smaller learning rate, or smaller inputs.",
                    options.learning_rate
                ),
            });
        }
        Ok(Some(FitProgress {
            epoch,
            step: run.step,
            steps,
            loss,
            is_epoch_end: last == per_epoch,
        }))
    }

    /// Trains one step: batch `index` of the epoch.
    async fn step(&mut self, run: &mut FitRun, index: usize) -> Result<()> {
        let options = run.options;
        let [size, target] = [count(&self.input), self.target_size(options.loss)];
        let first = index * options.batch_size;
        let batch = &run.order[first..run.count.min(first + options.batch_size)];
        let gather = |words: &[u32], size: usize| {
            let examples = batch.iter().map(|at| &words[at * size..][..size]);
            examples.collect::<Vec<&[u32]>>().concat()
        };
        let [x, y] = [gather(&run.examples, size), gather(&run.targets, target)];
        let counted = Self::counted(&y, options.loss);
        let key = (Pass::Training(options.loss), batch.len());
        self.prepare(key.0, key.1).await?;
        run.step += 1;
        run.counted += counted;
        self.write(NetworkBuffer::Input, &x);
        self.write(NetworkBuffer::Targets, &y);
        self.write_hyper(&options, counted, run.step);
        match &run.updates {
            Some([clear, update]) => self.submit(&[clear, &self.programs[&key].program, update]),
            None => Err(Error::Internal("the fit has no optimizer".into())),
        }
    }

    /// Computes the output of examples and, from the gradient of the output, the gradients of the
    /// input and the weights.
    ///
    /// # Errors
    /// `Request` for examples or a gradient of another shape; device errors.
    pub async fn gradients(&mut self, x: &[u32], dy: &[f32]) -> Result<NetworkGradients> {
        let all = self.examples(x)?;
        self.targets(bytemuck::cast_slice(dy), all, Loss::MeanSquare)?;
        self.prepare(Pass::Gradients, all).await?;
        let clear = self.clear_gradients().await?;
        let recorded = &self.programs[&(Pass::Gradients, all)];
        self.write(NetworkBuffer::Input, x);
        self.write(NetworkBuffer::Targets, bytemuck::cast_slice(dy));
        self.submit(&[&clear, &recorded.program])?;
        let output = self.read(recorded.output, dy.len()).await?;
        let input = match recorded.dx {
            Some(dx) => Some(self.read(dx, x.len()).await?),
            None => None,
        };
        let weights = self.read_weights(NetworkBuffer::Gradient).await?;
        self.gpu.check().await?;
        Ok(NetworkGradients {
            output,
            input,
            weights,
        })
    }
}

/// Values in a row of a weight, and elements between rows.
fn row_of(weight: &NetworkWeight) -> [usize; 2] {
    if weight.is_matrix {
        let cols = weight.shape[1];
        return [cols, LAYOUT.padded_cols(cols)];
    }
    [count(&weight.shape); 2]
}

/// Elements of a weight with the padding of its rows.
fn stored(weight: &NetworkWeight) -> usize {
    let [cols, stride] = row_of(weight);
    count(&weight.shape) / cols * stride
}

/// Records a pass; returns where its output and the gradient of its input are.
fn record(
    layers: &Layers,
    pass: Pass,
    recorder: &mut Recorder<'_>,
    batch: usize,
) -> (NetworkBuffer, Option<NetworkBuffer>) {
    let (output, kept) = recorder.forward(&layers.layers, NetworkBuffer::Input);
    let dx = match pass {
        Pass::Output => None,
        Pass::Evaluation(loss) => {
            add_loss(layers, loss, recorder, batch, output);
            None
        }
        Pass::Training(loss) => {
            let dy = add_loss(layers, loss, recorder, batch, output);
            recorder.backward(&layers.layers, &kept, dy, false)
        }
        Pass::Gradients => recorder.backward(&layers.layers, &kept, NetworkBuffer::Targets, true),
    };
    (output, dx)
}

/// Adds a loss to the sum of losses; returns its gradient.
fn add_loss(
    layers: &Layers,
    loss: Loss,
    recorder: &mut Recorder<'_>,
    batch: usize,
    output: NetworkBuffer,
) -> NetworkBuffer {
    use NetworkBuffer::{Hyper, RowLosses, Targets};
    let elements = batch * count(&layers.output);
    // The gradient replaces a copy: backward passes may read the output.
    let gradient = recorder.copy(output, elements);
    let classes = layers.output.last().copied().unwrap_or(1);
    let size = match loss {
        Loss::MeanSquare => [batch, elements / batch],
        Loss::CrossEntropy => [elements / classes, classes],
    };
    let view = contiguous(gradient, size[1]);
    recorder.push(match loss {
        Loss::MeanSquare => mean_square(size, &view, Targets, RowLosses, Hyper),
        Loss::CrossEntropy => cross_entropy(size, &view, Targets, RowLosses, Some(Hyper)),
    });
    recorder.push(add_losses(size[0], RowLosses, NetworkBuffer::Loss));
    gradient
}
