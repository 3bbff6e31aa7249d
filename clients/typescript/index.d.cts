/** What a number is given as. `number` refuses those above 2^53 - 1. */
export interface Representations {
  bigint: bigint;
  number: number;
  string: string;
}

export interface Logger {
  debug(message: string): void;
  warn(message: string): void;
}

type Pem = string | Uint8Array | Array<string | Uint8Array>;

export interface ClientOptions {
  /** With the scopes issue and lease, or issue alone; then nothing is handed back. */
  token?: string | undefined;
  /** How to speak TLS, as for node:https. */
  tls?: { ca?: Pem; cert?: Pem; key?: Pem; servername?: string } | undefined;
  /** The bounds of how many numbers are fetched at once: 10 and 100,000. */
  minStep?: number | undefined;
  maxStep?: number | undefined;
  /** Whether the next stretch is fetched in the background (true). Without, the program may be frozen between calls. */
  ahead?: boolean | undefined;
  /** Milliseconds that a call waits for numbers (5000). */
  deadline?: number | undefined;
  /** Milliseconds that one server may take for its answer (3000). */
  callTimeout?: number | undefined;
  /** console, pino and most others fit. Without, NODE_DEBUG=hapax shows what would be logged. */
  logger?: Logger | undefined;
}

export interface CallOptions {
  /** Milliseconds to wait if none is in hand. */
  deadline?: number | undefined;
  signal?: AbortSignal | undefined;
}

export interface Code<N> {
  id: N;
  text: string;
  /** Empty where numbers never restart. */
  period: string;
}

/** Takes numbers from servers that share one store. */
export class Client {
  constructor(servers: string | readonly string[], options?: ClientOptions);
  /** The numbers of a tag, which its first use creates unless the servers forbid that. */
  tag(name: string): Tag<bigint>;
  tag<K extends keyof Representations>(name: string, options: { as: K }): Tag<Representations[K]>;
  /** Hands back what is in hand. Later calls fail with the code closed. */
  close(): Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
}

/** A tag's numbers. Make it once or each time: it holds nothing. */
export class Tag<N = bigint> {
  private constructor();
  readonly name: string;
  /** One number, which nobody else gets. */
  next(options?: CallOptions): Promise<N>;
  /** Several numbers. */
  take(count: number, options?: CallOptions): Promise<N[]>;
  /** Several numbers with the texts that show them. None is kept for later. */
  codes(count?: number, options?: CallOptions): Promise<Array<Code<N>>>;
}

/** Says why there is no number. Branch on its code, which is the server's, or one of
 * invalid_argument, invalid_tag, closed and unavailable. */
export class HapaxError extends Error {
  readonly name: "HapaxError";
  readonly code: string;
  /** Of HTTP; 0: no server said so. */
  readonly status: number;
  /** Asking again will not help. */
  readonly final: boolean;
  /** Milliseconds. */
  readonly retryAfter: number;
  constructor(code: string, detail?: string, options?: { final?: boolean; status?: number; retryAfter?: number });
}
