<?php

declare(strict_types=1);

namespace Hapax\Internal;

use Hapax\HapaxException;
use RuntimeException;
use UnexpectedValueException;

/** @internal The servers of one client, in one process. */
final class Servers
{
    private const REST = 1.0; // seconds for which a server that failed is asked last
    private const REFUSED = [400, 401, 403, 404, 405, 409, 410, 413, 415, 501];
    private const PAUSE = 0.05; // seconds after all were asked in vain
    private const MAX_PAUSE = 1.0;

    /** @var list<Server> */
    private array $all;
    private int $preferred = 0;

    public function __construct(private readonly array $options, public ?string $store)
    {
        $this->all = array_map(fn (string $url) => new Server($url, $options['tls']), $options['servers']);
    }

    public static function pause(int $failures): float
    {
        return min(self::MAX_PAUSE, self::PAUSE * 2 ** min($failures, 10));
    }

    /**
     * Asks until a server answers, or the deadline is over.
     *
     * @param callable(): array $body
     * @param callable(array, array{float, float, int}): mixed $read
     * @param callable(HapaxException, int): bool $asksLess whether the next body asks for less
     */
    public function persist(string $path, callable $body, float $until, callable $read, callable $asksLess): mixed
    {
        for ($failures = 0;; $failures++) {
            try {
                $asked = $body();
                return $this->ask($path, $asked, $until, $read);
            } catch (HapaxException $e) {
                if ($e->final || (!$asksLess($e, $asked['count']) && $e->status === 507)) {
                    throw $e;
                }
                $wait = $e->status === 507 ? 0.0 : max(self::pause($failures), $e->retryAfter);
                if (Process::now() + $wait >= $until) {
                    throw $e;
                }
                usleep((int) (1e6 * $wait));
            }
        }
    }

    /** Asks each server once, until one gives an answer that can be read. */
    public function ask(string $path, array $body, float $until, callable $read): mixed
    {
        $last = null;
        $soonest = 3600.0;
        foreach ($this->order() as $at => $server) {
            $left = $until - Process::now();
            if ($left <= 0) {
                break;
            }
            $sent = [Process::now(), microtime(true), $body['count'] ?? 0];
            try {
                $result = $this->read($server, fn () => $this->begin($server, $path, $body, $left), $until, $read, $sent)
                    ?? throw new HapaxException('unavailable', "{$server->name} did not answer in time");
                $this->preferred = $at;
                return $result;
            } catch (HapaxException $e) {
                if ($e->final || $e->status === 429 || $e->status === 507) {
                    throw $e;
                }
                $soonest = min($soonest, $e->retryAfter);
                $this->options['logger']?->warning('hapax: {server}: {error}', ['server' => $server->name, 'error' => $e->getMessage()]);
                $last = $last === null || $e->status !== 0 ? $e : $last;
            }
        }
        if ($last === null) {
            throw new HapaxException('unavailable', 'no server answered in time');
        }
        $last->retryAfter = $soonest;
        throw $last;
    }

    /**
     * Begins a request that somebody reads later, over a connection that is there.
     *
     * @return array{Server, Exchange, array{float, float, int}}|null
     */
    public function beginAhead(string $path, array $body): ?array
    {
        $server = current($this->order());
        $sent = [Process::now(), microtime(true), $body['count'] ?? 0];
        $exchange = $this->begin($server, $path, $body, $this->options['callTimeout'], false);
        return $exchange === null ? null : [$server, $exchange, $sent];
    }

    /** Reads the answer of one server, or says why there are no numbers in it; null: not yet. */
    public function read(Server $server, callable $begun, float $until, callable $read, array $sent): mixed
    {
        try {
            $exchange = $begun();
            if (!$exchange->isDone($until)) {
                return null;
            }
            $server->end($exchange);
            $answer = json_decode($exchange->body, true, 16);
            $answer = is_array($answer) ? $answer : [];
            if ($exchange->status !== 200) {
                throw $this->refusal($server, $exchange, $answer);
            }
            $result = $read($answer, $sent);
            $this->settle($server, $exchange->headers['hapax-store'] ?? null);
            return $result;
        } catch (UnexpectedValueException $e) {
            $error = new HapaxException('unavailable', "{$server->name} answered with something else than numbers: {$e->getMessage()}");
        } catch (HapaxException $e) {
            $error = $e;
        } catch (RuntimeException $e) {
            $error = new HapaxException('unavailable', "{$server->name} did not answer: {$e->getMessage()}");
        }
        if (!$error->final && $error->status !== 429 && $error->status !== 507) {
            $server->restsUntil = Process::now() + max(self::REST, $error->retryAfter);
        }
        throw $error;
    }

    public function close(): void
    {
        array_walk($this->all, fn (Server $server) => $server->close());
    }

    /** @return array<int, Server> those that rest come last */
    private function order(): array
    {
        $now = Process::now();
        $order = array_slice($this->all, $this->preferred, null, true) + $this->all;
        return array_filter($order, fn (Server $s) => $s->restsUntil <= $now) + $order;
    }

    private function begin(Server $server, string $path, array $body, float $left, bool $mayConnect = true): ?Exchange
    {
        $headers = "Content-Type: application/json\r\nUser-Agent: hapax-php/1\r\n"
            . ($this->options['token'] === null ? '' : "Authorization: Bearer {$this->options['token']}\r\n")
            . ($this->store === null ? '' : "Hapax-Store: {$this->store}\r\n");
        return $server->begin($path, $headers, json_encode($body, JSON_THROW_ON_ERROR), min($left, $this->options['callTimeout']), $mayConnect);
    }

    /** The first answer with numbers says which store it is. */
    private function settle(Server $server, ?string $store): void
    {
        $this->store ??= $store;
        if ($store === null || $store !== $this->store) {
            throw new HapaxException('store_replaced', "{$server->name} has another store than the servers before; its numbers are not used", false, 503);
        }
    }

    private function refusal(Server $server, Exchange $exchange, array $answer): HapaxException
    {
        $code = $answer['code'] ?? null;
        if (!is_string($code)) {
            return new HapaxException('unavailable', "{$server->name} answered with status {$exchange->status}; is it a hapax server?");
        }
        $after = $exchange->headers['retry-after'] ?? '';
        $after = is_numeric($after) ? min(max(0.0, (float) $after), 3600.0) : 0.0;
        $detail = $answer['detail'] ?? $answer['title'] ?? '';
        return new HapaxException($code, is_string($detail) ? $detail : '', in_array($exchange->status, self::REFUSED, true), $exchange->status, $after);
    }
}
