<?php

declare(strict_types=1);

namespace Hapax\Internal;

use Hapax\HapaxException;

/** @internal One of the addresses. */
final class Server
{
    private const MAX_IDLE = 4;
    private const IDLE_FOR = 30.0; // seconds

    public readonly string $name;
    public float $restsUntil = 0.0;
    private readonly string $address;
    private readonly string $host;
    private readonly string $path;
    /** @var list<array{resource, float, int}> with when and in which process they were used */
    public array $idle = [];

    public function __construct(string $url, private readonly array $tls)
    {
        $parts = parse_url($url);
        $scheme = $parts['scheme'] ?? '';
        if (!in_array($scheme, ['http', 'https'], true) || ($parts['host'] ?? '') === '' || array_intersect_key($parts, ['user' => 1, 'query' => 1, 'fragment' => 1])) {
            $shown = str_contains($url, '@') ? '(not shown)' : var_export($url, true);
            throw HapaxException::invalid("invalid server $shown: want one such as http://127.0.0.1:8080");
        }
        $this->host = $parts['host'] . (isset($parts['port']) ? ":{$parts['port']}" : '');
        $this->name = "$scheme://{$this->host}";
        $this->address = ($scheme === 'https' ? 'tls' : 'tcp') . "://{$parts['host']}:" . ($parts['port'] ?? ($scheme === 'https' ? 443 : 80));
        $this->path = rtrim($parts['path'] ?? '', '/');
    }

    /**
     * Begins a request; returns null if that takes a new connection and is not to.
     *
     * @param array{float, float, int} $sent the clocks, and how many are asked for
     */
    public function begin(string $path, string $headers, string $body, array $sent, float $timeout, bool $mayConnect): ?Exchange
    {
        $stream = $this->kept() ?? ($mayConnect ? $this->connect($timeout) : null);
        $length = strlen($body);
        $request = "POST {$this->path}$path HTTP/1.1\r\nHost: {$this->host}\r\nContent-Length: $length\r\n$headers\r\n$body";
        return $stream === null ? null : new Exchange($this, $sent, $stream, $request, $sent[0] + $timeout);
    }

    /** Keeps the connection, if it can be used again. */
    public function end(Exchange $exchange): void
    {
        if ($exchange->mayGoOn() && count($this->idle) < self::MAX_IDLE) {
            $this->idle[] = [$exchange->stream, State::now(), getmypid()];
        }
    }

    /** @return resource|null */
    private function kept(): mixed
    {
        while ($this->idle !== []) {
            [$stream, $since, $process] = array_pop($this->idle);
            [$read, $write, $except] = [[$stream], [], []];
            // One that has something to read was closed, or says what nobody asked for.
            if ($process === getmypid() && State::now() - $since < self::IDLE_FOR && @stream_select($read, $write, $except, 0) === 0) {
                return $stream;
            }
        }
        return null;
    }

    /** @return resource */
    private function connect(float $timeout): mixed
    {
        $context = stream_context_create(['ssl' => $this->tls, 'socket' => ['tcp_nodelay' => true]]);
        $stream = @stream_socket_client($this->address, $number, $why, max(0.001, $timeout), STREAM_CLIENT_CONNECT, $context);
        if ($stream === false) {
            throw new \RuntimeException($why !== '' ? $why : 'no connection; over https, its certificate may not be one that is trusted');
        }
        stream_set_blocking($stream, false);
        return $stream;
    }
}
