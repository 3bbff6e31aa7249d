<?php

declare(strict_types=1);

namespace Hapax\Internal;

use Hapax\HapaxException;

/** @internal The servers of one client, in one process. */
final class Servers
{
    private const REST = 1.0; // seconds for which a server that failed is asked last
    private const REFUSED = [400, 401, 403, 404, 405, 409, 410, 413, 415, 501];

    /** @var list<Server> */
    private array $all;
    private int $preferred = 0;

    public function __construct(private readonly array $options, public ?string $store)
    {
        $this->all = array_map(fn (string $url) => new Server($url, $options['tls']), $options['servers']);
    }

    /** Asks each server once, until one gives an answer that can be read. */
    public function ask(string $path, array $body, float $until, callable $read): mixed
    {
        [$last, $soonest] = [null, 3600.0];
        foreach ($this->order() as $at => $server) {
            $left = $until - State::now();
            if ($left <= 0) {
                break;
            }
            try {
                $result = $this->read($server, fn () => $this->begin($server, $path, $body, $left), $until, $read)
                    ?? throw new HapaxException('unavailable', "{$server->name} did not answer in time");
                $this->preferred = $at;
                return $result;
            } catch (HapaxException $e) {
                if ($e->final || $e->status === 429 || $e->status === 507) {
                    throw $e;
                }
                $this->preferred = ($at + 1) % count($this->all); // else the time may never reach those after some that hang
                $soonest = min($soonest, $e->retryAfter);
                $this->options['logger']?->warning('hapax: {server}: {error}', ['server' => $server->name, 'error' => $e->getMessage()]);
                $last = $last === null || $e->status !== 0 ? $e : $last;
            }
        }
        $last ??= new HapaxException('unavailable', 'no server answered in time');
        $last->retryAfter = $soonest;
        throw $last;
    }

    /** Begins a request that somebody reads later, over a connection that is there. */
    public function beginAhead(string $path, array $body): ?Exchange
    {
        return $this->begin(current($this->order()), $path, $body, $this->options['callTimeout'], false);
    }

    /**
     * Reads the answer of one server, or says why there are no numbers in it; null: not yet.
     *
     * @param callable(): Exchange $begun
     * @param callable(array, array{float, float, int}): mixed $read
     */
    public function read(Server $server, callable $begun, float $until, callable $read): mixed
    {
        try {
            $exchange = $begun();
            if (!$exchange->isDone($until)) {
                return null;
            }
            $server->end($exchange);
            $answer = (array) json_decode($exchange->body, true, 16);
            if ($exchange->status !== 200) {
                throw $this->refusal($server, $exchange, $answer);
            }
            $result = $read($answer, $exchange->sent);
            $store = $exchange->headers['hapax-store'] ?? null;
            $this->store ??= $store; // the first answer with numbers says which store it is
            if ($store === null || $store !== $this->store) {
                throw new HapaxException('store_replaced', "{$server->name} has another store than the servers before; its numbers are not used", false, 503);
            }
            return $result;
        } catch (\RuntimeException $e) {
            $error = match (true) {
                $e instanceof HapaxException => $e,
                $e instanceof \UnexpectedValueException => new HapaxException('unavailable', "{$server->name} answered with something else than numbers: {$e->getMessage()}"),
                default => new HapaxException('unavailable', "{$server->name} did not answer: {$e->getMessage()}"),
            };
        }
        if (!$error->final && $error->status !== 429 && $error->status !== 507) {
            $server->restsUntil = State::now() + max(self::REST, $error->retryAfter);
        }
        throw $error;
    }

    public function close(): void
    {
        foreach ($this->all as $server) {
            $server->idle = [];
        }
    }

    /** @return array<int, Server> those that rest come last */
    private function order(): array
    {
        $now = State::now();
        $order = array_slice($this->all, $this->preferred, null, true) + $this->all;
        return array_filter($order, fn (Server $s) => $s->restsUntil <= $now) + $order;
    }

    private function begin(Server $server, string $path, array $body, float $left, bool $mayConnect = true): ?Exchange
    {
        $headers = "Content-Type: application/json\r\nUser-Agent: hapax-php/1\r\n"
            . ($this->options['token'] === null ? '' : "Authorization: Bearer {$this->options['token']}\r\n")
            . ($this->store === null ? '' : "Hapax-Store: {$this->store}\r\n");
        $sent = [State::now(), microtime(true), $body['count'] ?? 0];
        return $server->begin($path, $headers, json_encode($body, JSON_THROW_ON_ERROR), $sent, min($left, $this->options['callTimeout']), $mayConnect);
    }

    private function refusal(Server $server, Exchange $exchange, array $answer): HapaxException
    {
        $code = $answer['code'] ?? null;
        if (!is_string($code)) {
            return new HapaxException('unavailable', "{$server->name} answered with status {$exchange->status}; is it a hapax server?");
        }
        $after = min(max(0.0, (float) ($exchange->headers['retry-after'] ?? 0)), 3600.0);
        $detail = $answer['detail'] ?? $answer['title'] ?? '';
        return new HapaxException($code, is_string($detail) ? $detail : '', in_array($exchange->status, self::REFUSED, true), $exchange->status, $after);
    }
}
