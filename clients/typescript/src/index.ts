/**
 * Gatehouse from Node: `Client` calls a hub, `Worker` executes its tasks.
 *
 * api.ts has the types of the API. `npm run types` writes them from the product's OpenAPI document.
 */
import { randomUUID } from "node:crypto";
import { hostname } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";
import createFetch from "openapi-fetch";
import type { components, paths } from "./api.ts";

type Schemas = components["schemas"];
type Loose<T, K extends keyof T> = Omit<T, K> & Partial<Pick<T, K>>;

const AWAY = new Set([502, 503, 504]);
const TOO_MANY = 429;
const FIRST_PAUSE_MS = 100;
const LONGEST_PAUSE_MS = 5_000;
const LONGEST_WAIT_SECONDS = 60;
const LONGEST_ANSWER_MS = 75_000;
const LONGEST_MESSAGE = 2_000;
/** The run is over: somebody else has the task, or it has ended. */
const LOST = new Set(["lease_lost", "already_decided", "bad_lease_token"]);
// A lease survives a few failed heartbeats.
const BEATS_PER_LEASE = 4;
const SHORTEST_BEAT_MS = 250;
const IDLE_MS = 1_000;

/** The hub refuses a request: the same request again would be refused again. */
export class Refused extends Error {
  readonly status: number;
  readonly code: string;
  readonly errors: readonly { pointer: string; message: string }[];

  constructor(status: number, document: Record<string, any>) {
    super(`${status} ${document.code}: ${document.detail}`);
    this.status = status;
    this.code = document.code ?? "no_json";
    this.errors = document.errors ?? [];
  }
}

/** The hub did not answer while the client was patient, or asked to come again later. */
export class Unreachable extends Error {}

/** Throw it in a handler: the run has failed, with a code and a message for the requester. */
export class Failed extends Error {
  readonly code: string;
  readonly retryable: boolean;
  readonly retryAfter: number | null;

  /** @param options `retryAfter` is in seconds. */
  constructor(code: string, message: string, options: { retryable: boolean; retryAfter?: number }) {
    super(message);
    this.code = code;
    this.retryable = options.retryable;
    this.retryAfter = options.retryAfter ?? null;
  }
}

export interface ClientOptions {
  /** Default: GATEHOUSE_URL. */
  url?: string;
  /** Default: GATEHOUSE_TOKEN. */
  token?: string;
  /** For how many seconds a request is repeated that was not answered. Default: 60. */
  patience?: number;
}

/**
 * The API of a hub for one principal. `api` has every operation with its types; the methods have those asked most.
 *
 * A request that meets a broken connection, 429, 502, 503 or 504 is sent again, unchanged. Nothing happens twice: the hub
 * recognises a repeated request by its key or its lease. Any other refusal is thrown as `Refused`.
 */
export class Client {
  readonly api: ReturnType<typeof createFetch<paths>>;
  readonly #options: ClientOptions;
  readonly #patience: number;

  constructor(options: ClientOptions = {}) {
    const url = options.url ?? process.env.GATEHOUSE_URL;
    const token = options.token ?? process.env.GATEHOUSE_TOKEN;
    if (!url || !token) throw new Error("Set GATEHOUSE_URL and GATEHOUSE_TOKEN: the hub's address and your token.");
    this.#options = options;
    this.#patience = options.patience ?? 60;
    this.api = createFetch<paths>({
      baseUrl: url.replace(/\/$/, ""),
      headers: { Authorization: `Bearer ${token}` },
      fetch: (request) => this.#answered(request),
    });
  }

  /** This client, with requests repeated for so many seconds. */
  within(patience: number): Client {
    return new Client({ ...this.#options, patience });
  }

  /** Queue a task. Your own `idempotency_key` makes two calls one, also across restarts. */
  async queue(task: Loose<Schemas["QueueTask"], OptionalOf<"QueueTask">>): Promise<Schemas["QueuedTask"]> {
    const body = { idempotency_key: randomUUID(), ...task } as Schemas["QueueTask"];
    return (await this.api.POST("/api/v1/tasks", { body })).data!;
  }

  /** How a task stands, as soon as it has ended; `seconds` is at most 60. */
  async status(taskId: string, seconds = 0): Promise<Schemas["TaskStatus"]> {
    const params = { ...at(taskId).params, query: { wait: Math.min(seconds, LONGEST_WAIT_SECONDS) } };
    return (await this.api.GET("/api/v1/tasks/{task_id}", { params })).data!;
  }

  /** @throws Refused `not_finished` if there is none yet. */
  async result(taskId: string): Promise<Schemas["TaskResult"]> {
    return (await this.api.GET("/api/v1/tasks/{task_id}/result", at(taskId))).data!;
  }

  async cancel(taskId: string): Promise<void> {
    await this.api.POST("/api/v1/tasks/{task_id}/cancel", { ...at(taskId), body: {} as never });
  }

  /** Your unread entries, oldest first, as soon as there is one after this sequence; `seconds` is at most 60. */
  async wait(seconds: number, after = 0): Promise<Schemas["InboxOutput"]> {
    const query = { wait: Math.min(seconds, LONGEST_WAIT_SECONDS), after };
    return (await this.api.GET("/api/v1/inbox", { params: { query } })).data!;
  }

  /** Ack all entries up to one, as shown by the read that its `token` comes from. */
  async ack(token: string): Promise<void> {
    await this.api.POST("/api/v1/inbox/ack-through", { body: { through: token } as never });
  }

  async #answered(request: Request): Promise<Response> {
    const until = Date.now() + this.#patience * 1000;
    for (let pause = FIRST_PAUSE_MS; ; pause = Math.min(2 * pause, LONGEST_PAUSE_MS)) {
      let problem: unknown;
      let asked = 0;
      try {
        // Until the answer begins: its body may be a stream.
        const late = new AbortController();
        const timer = setTimeout(() => late.abort(new Error("no answer")), LONGEST_ANSWER_MS);
        const signal = AbortSignal.any([request.signal, late.signal]);
        const answer = await fetch(request.clone(), { signal }).finally(() => clearTimeout(timer));
        if (answer.ok) return answer;
        const document = (await answer.json().catch(() => ({}))) as Record<string, any>;
        problem = new Refused(answer.status, document);
        if (!AWAY.has(answer.status) && answer.status !== TOO_MANY) throw problem;
        asked = Number(answer.headers.get("Retry-After") ?? 0) * 1000 || 0;
      } catch (error) {
        if (error instanceof Refused || request.signal.aborted) throw error;
        problem = error;
      }
      // Full jitter: clients that failed together do not retry together.
      const rest = Math.max(asked, Math.random() * pause);
      if (Date.now() + rest > until) {
        throw new Unreachable(`${request.method} ${new URL(request.url).pathname} was not answered`, { cause: problem });
      }
      await sleep(rest);
    }
  }
}

/** A run as its handler sees it. */
export class Task {
  readonly taskId: string;
  readonly runId: number;
  readonly params: Record<string, any>;
  /** What an earlier run has saved; null at first. */
  readonly checkpoint: any;
  /** Aborted when the task was canceled, its lease was lost, or the worker must end. Its result is not wanted then. */
  readonly signal: AbortSignal;
  readonly lease: Schemas["LeasedTask"];
  readonly stopped = new AbortController();
  dueAt: number;
  /** For the worker: its handler has ended. */
  returned = false;
  #client: Client;
  #progress: Schemas["ProgressInput"] | null = null;
  #sequence = 0;

  constructor(lease: Schemas["LeasedTask"], client: Client) {
    this.lease = lease;
    this.taskId = lease.task_id;
    this.runId = lease.run_id;
    this.params = lease.params;
    this.checkpoint = lease.checkpoint;
    this.signal = this.stopped.signal;
    this.#client = client;
    this.dueAt = dueAfter(lease.lease_ms);
  }

  /** Report progress, with the next heartbeat. Throws when there is a reason to stop. */
  progress(percent: number | null, message: string | null = null): void {
    this.#progress = { percent, message };
    this.signal.throwIfAborted();
  }

  /** Save the state from which a next run continues. It is saved when this returns. */
  async save(checkpoint: Record<string, any>): Promise<void> {
    const answer = await this.beat(checkpoint);
    this.signal.throwIfAborted();
    if (answer.status === "retry") {
      await sleep(FIRST_PAUSE_MS);
      await this.save(checkpoint);
    }
  }

  /** For the worker: renew the lease, and obey. */
  async beat(checkpoint: Record<string, any> | null = null): Promise<Schemas["HeartbeatAnswer"]> {
    const { task_id, lease_token } = this.lease;
    const progress = this.#progress;
    this.#sequence += 1;
    const held = { task_id, lease_token, progress, checkpoint, sequence: this.#sequence };
    const body = { leases: [held] } as unknown as Schemas["HeartbeatTasks"];
    const { data } = await this.#client.api.POST("/api/v1/tasks/heartbeat", { body });
    const answer = data!.results[0]!;
    if (answer.status === "ok" && this.#progress === progress) this.#progress = null;
    if (answer.status === "lost") this.stopped.abort(new Error("The lease was lost."));
    else if (answer.order === "cancel") this.stopped.abort(new Error("The task is to be canceled."));
    else if (answer.order === "drain") this.stopped.abort(new Error("The task is to be given back."));
    this.dueAt = dueAfter(answer.lease_ms);
    return answer;
  }
}

export type Handler = (task: Task) => unknown;

export interface WorkerOptions {
  /** How many tasks to work on at once. Default: 4. */
  capacity?: number;
  /** For how many seconds running handlers may go on after the stop. Default: 20. */
  grace?: number;
}

/** Leases tasks, renews the leases while your functions work, and reports the outcomes. A handler may run again for the same task. */
export class Worker {
  readonly #client: Client;
  readonly #capacity: number;
  readonly #grace: number;
  readonly #handlers = new Map<string, Handler>();
  readonly #held = new Map<Task, Promise<void>>();

  constructor(client: Client, options: WorkerOptions = {}) {
    this.#client = client;
    this.#capacity = options.capacity ?? 4;
    this.#grace = options.grace ?? 20;
  }

  /** Register the handler of a task type. It returns the result: any JSON. */
  handles(taskType: string, handler: Handler): this {
    this.#handlers.set(taskType, handler);
    return this;
  }

  /**
   * Work until the signal aborts: then nothing more is leased, and what does not end within the grace is released.
   *
   * @throws Refused if the hub refuses the worker: an unknown token, a missing scope.
   */
  async run(stop: AbortSignal): Promise<void> {
    const over = new AbortController();
    const beats = this.#keepAlive(over.signal);
    try {
      while (!stop.aborted) {
        if (this.#held.size >= this.#capacity) await Promise.race(this.#held.values());
        else if (!(await this.#lease())) await Promise.race([rest(IDLE_MS, stop), ...this.#held.values()]);
      }
    } finally {
      await Promise.race([rest(this.#grace * 1000, over.signal), this.#allEnded()]);
      for (const task of this.#held.keys()) task.stopped.abort(new Error("The worker ends."));
      await Promise.race([rest(IDLE_MS, over.signal), this.#allEnded()]);
      // A handler that does not heed the signal goes on without its lease; outcomes are still reported.
      const deaf = [...this.#held.keys()].filter((task) => !task.returned);
      await Promise.all(deaf.map((task) => this.#release(task).catch(() => undefined)));
      await Promise.all([...this.#held].filter(([task]) => task.returned).map(([, work]) => work));
      over.abort();
      await beats;
    }
  }

  /** Whether there was something to lease. */
  async #lease(): Promise<boolean> {
    const capacity = this.#capacity - this.#held.size;
    const body = { task_types: [...this.#handlers.keys()], capacity, wait_seconds: 1, host: hostname() };
    try {
      const { data } = await this.#client.within(0).api.POST("/api/v1/tasks/lease", { body: body as Schemas["LeaseTasks"] });
      for (const lease of data?.tasks ?? []) {
        const task = new Task(lease, this.#client);
        this.#held.set(task, this.#work(task).finally(() => this.#held.delete(task)));
      }
      return Boolean(data?.tasks.length);
    } catch (error) {
      if (!(error instanceof Unreachable)) throw error;
      console.warn("no tasks were leased:", error.message);
      return false;
    }
  }

  async #work(task: Task): Promise<void> {
    const { task_type, lease_token } = task.lease;
    try {
      let result: unknown;
      try {
        const handler = this.#handlers.get(task_type)!;
        result = await Promise.resolve(task).then(handler).finally(() => (task.returned = true));
      } catch (error) {
        if (task.signal.aborted) return await this.#release(task);
        if (!(error instanceof Failed)) console.error(`the handler of ${task_type} failed on ${task.taskId}:`, error);
        return await this.#fail(
          task,
          error instanceof Failed ? error : new Failed("handler_error", "The handler failed.", { retryable: true }),
        );
      }
      try {
        const body = { lease_token, result: result ?? null } as never;
        await this.#client.api.POST("/api/v1/tasks/{task_id}/complete", { ...at(task.taskId), body });
      } catch (error) {
        const isRefused = error instanceof Refused && error.status < 500 && !LOST.has(error.code);
        if (!isRefused && !(error instanceof TypeError)) throw error; // a TypeError: the result is no JSON
        // A refused result is not computed again.
        const code = error instanceof Refused ? error.code : "unsendable_result";
        const message = `The result was not taken: ${(error as Error).message}`.slice(0, LONGEST_MESSAGE);
        await this.#fail(task, new Failed(code, message, { retryable: false }));
      }
    } catch (error) {
      // The lease is over, or expires: the hub gives the task to somebody else.
      console.warn(`the outcome of ${task.taskId} was not reported:`, (error as Error).message);
    }
  }

  async #fail(task: Task, failed: Failed): Promise<void> {
    const outcome = { code: failed.code, message: failed.message };
    const { lease_token } = task.lease;
    const body = { lease_token, error: outcome, retryable: failed.retryable, retry_after: failed.retryAfter };
    await this.#client.api.POST("/api/v1/tasks/{task_id}/fail", { ...at(task.taskId), body: body as never });
  }

  async #release(task: Task): Promise<void> {
    const { lease_token } = task.lease;
    await this.#client.api.POST("/api/v1/tasks/{task_id}/release", { ...at(task.taskId), body: { lease_token } });
  }

  async #keepAlive(over: AbortSignal): Promise<void> {
    while (!over.aborted) {
      const due = [...this.#held.keys()].filter((task) => task.dueAt <= Date.now() && !task.signal.aborted);
      await Promise.all(due.map((task) => task.beat().catch((error) => console.warn("a heartbeat failed:", error.message))));
      await rest(SHORTEST_BEAT_MS, over);
    }
  }

  #allEnded(): Promise<unknown> {
    return Promise.all(this.#held.values());
  }
}

type OptionalOf<Name extends "QueueTask"> = Exclude<keyof Schemas[Name], "task_type">;

function at(taskId: string) {
  return { params: { path: { task_id: taskId } } };
}

function dueAfter(leaseMs: number): number {
  return Date.now() + Math.max(leaseMs / BEATS_PER_LEASE, SHORTEST_BEAT_MS);
}

async function rest(milliseconds: number, until: AbortSignal): Promise<void> {
  await sleep(milliseconds, undefined, { signal: until }).catch(() => undefined);
}
