<?php

// A php-fpm of its own, and requests to it over FastCGI.

declare(strict_types=1);

final class Fpm
{
    private mixed $process;
    private string $dir;

    /** Where php-fpm is, or null. */
    public static function program(): ?string
    {
        return glob('/usr/sbin/php-fpm*')[0] ?? null;
    }

    public function __construct(string $program, private readonly string $script)
    {
        $this->dir = sys_get_temp_dir() . '/hapax-' . bin2hex(random_bytes(6));
        mkdir($this->dir);
        $user = posix_geteuid() === 0 ? "user = root\ngroup = root\n" : '';
        file_put_contents("{$this->dir}/conf", "[global]\nerror_log = {$this->dir}/log\n[www]\n{$user}listen = {$this->dir}/socket\n"
            . "pm = static\npm.max_children = 4\npm.max_requests = 10\nclear_env = no\nsecurity.limit_extensions =\n");
        $this->process = proc_open([$program, '-n', '-F', '-R', '-y', "{$this->dir}/conf"], [2 => ['file', '/dev/null', 'w']], $pipes);
        for ($tries = 0; !is_resource($socket = @stream_socket_client("unix://{$this->dir}/socket")); $tries++) {
            check($tries < 6000 && proc_get_status($this->process)['running'], 'php-fpm does not start: ' . @file_get_contents("{$this->dir}/log"));
            usleep(10_000);
        }
    }

    /** Begins a request, and returns what waits for its body. */
    public function begin(): callable
    {
        $socket = stream_socket_client("unix://{$this->dir}/socket");
        stream_set_timeout($socket, 60);
        $pairs = '';
        foreach (['SCRIPT_FILENAME' => $this->script, 'REQUEST_METHOD' => 'GET', 'SERVER_PROTOCOL' => 'HTTP/1.1'] as $name => $value) {
            $pairs .= chr(strlen($name)) . chr(strlen($value)) . $name . $value;
        }
        $record = fn (int $type, string $content) => pack('CCnnCC', 1, $type, 1, strlen($content), 0, 0) . $content;
        fwrite($socket, $record(1, pack('nCx5', 1, 0)) . $record(4, $pairs) . $record(4, '') . $record(5, ''));
        return function () use ($socket): string {
            $all = (string) stream_get_contents($socket);
            fclose($socket); // for which the child waits
            for ($out = ''; strlen($all) >= 8; $all = substr($all, 8 + $head['size'] + $head['padding'])) {
                $head = unpack('Cversion/Ctype/nid/nsize/Cpadding', $all);
                $out .= $head['type'] === 6 ? substr($all, 8, $head['size']) : '';
            }
            return explode("\r\n\r\n", $out, 2)[1] ?? $out;
        };
    }

    public function close(): void
    {
        proc_terminate($this->process);
        proc_close($this->process);
        array_map(unlink(...), glob("{$this->dir}/*"));
        rmdir($this->dir);
    }
}
