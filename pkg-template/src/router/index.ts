/**
 * A router between models of this device and a server, and events with timings.
 *
 * @module jerboa/router
 */

export { createRouter, ROUTE_HEADER } from "./router.js";
export type { RemoteServer, Route, RoutePolicy, RouterOptions, RouteRequest } from "./router.js";
export { observeLoads } from "./telemetry.js";
export type { AttributeValue, LogLevel, TelemetryEvent, TelemetryOptions } from "./telemetry.js";
