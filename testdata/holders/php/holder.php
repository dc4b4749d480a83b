<?php
// holder.php: the PHP holder, Laravel's cache lock that the Go test suites run against.
// Usage: php holder.php KIND redis://[:password@]host:port/db [name=value ...]
// ../README.md describes the kind and the line protocol. Runs on PHP 7.4 and later with Debian's php-illuminate-cache.

require 'Illuminate/Cache/autoload.php';
require 'Illuminate/Redis/autoload.php';

use Illuminate\Cache\RedisStore;
use Illuminate\Redis\RedisManager;

const LEAVE_TRIES = 50; // a referee's field that stays behind would look like an overlap for ever

class Usage extends Exception
{
}

class Unsupported extends Exception
{
}

/** One line, written at once: a holder that is killed at any moment has said all that it did. */
function event(string $name, array $fields = []): void
{
    $line = json_encode(['event' => $name] + $fields, JSON_UNESCAPED_SLASHES | JSON_INVALID_UTF8_SUBSTITUTE);
    fwrite(STDOUT, $line . "\n");
}

function error(string $op, Throwable $e, array $fields = []): void
{
    event('error', ['op' => $op, 'class' => get_class($e), 'message' => $e->getMessage()] + $fields);
}

function since(int $start): int
{
    return intdiv(hrtime(true) - $start, 1_000_000);
}

function sleep_ms(int $ms): void
{
    if ($ms > 0) {
        usleep($ms * 1000);
    }
}

function whole(string $word): int
{
    if (!preg_match('/^-?\d+$/', $word)) {
        throw new Usage("not a number: $word");
    }
    return (int) $word;
}

// ---------------------------------------------------------------- command line

/** KIND URL [name=value ...]. Times are in ms. */
class Options
{
    public string $kind;
    public string $id;
    public array $server;
    public array $book;
    private array $numbers = [];

    public function __construct(array $args)
    {
        if (count($args) < 2) {
            throw new Usage('want KIND redis://[:password@]host:port/db [name=value ...]');
        }
        $this->kind = $args[0];
        $this->server = $this->book = self::server($args[1]);
        $this->id = $this->kind . '-' . getmypid();
        foreach (array_slice($args, 2) as $arg) {
            [$name, $value] = array_pad(explode('=', $arg, 2), 2, '');
            if ($name === 'id') {
                $this->id = $value;
            } elseif (in_array($name, ['lease', 'wait', 'poll'], true)) {
                $this->numbers[$name] = whole($value);
            } elseif ($name === 'book') {
                $this->book = self::server("redis://$value/0");
            } else {
                throw new Usage("unknown option $arg; want id, lease, wait, poll, book");
            }
        }
    }

    public function number(string $name, int $default): int
    {
        $value = $this->numbers[$name] ?? $default;
        if ($value < 0) {
            throw new Usage("$name must not be negative");
        }
        return $value;
    }

    /** A server as Laravel's configuration names it. */
    private static function server(string $url): array
    {
        $parts = parse_url($url);
        if (($parts['scheme'] ?? '') !== 'redis' || empty($parts['host'])) {
            throw new Usage("not a redis:// URL: $url");
        }
        $server = [
            'host' => $parts['host'],
            'port' => $parts['port'] ?? 6379,
            'database' => (int) trim($parts['path'] ?? '', '/'),
        ];
        if (!empty($parts['pass'])) {
            $server['password'] = urldecode($parts['pass']);
        }
        return $server;
    }
}

// ---------------------------------------------------------------- the lock

/**
 * Kind `laravel`: the Cache::lock of Laravel 8 (PhpRedisLock), unmodified, on the phpredis extension.
 *
 * lease=0 is a lock without seconds: SETNX, and no TTL. With a lease, in whole seconds, it is SET EX NX. Its wait is
 * ours: Lock::block counts in whole seconds of the wall clock, and these tries do the same with an end in ms.
 */
class LaravelHolder
{
    public string $version;
    public int $waitMs;
    public int $pollMs;
    private int $seconds;
    private RedisStore $store;
    private array $held = [];

    public function __construct(Options $options)
    {
        $lease = $options->number('lease', 0);
        $this->seconds = $lease === 0 ? 0 : max(1, (int) round($lease / 1000));
        $this->waitMs = $options->number('wait', 10000);
        $this->pollMs = max(1, $options->number('poll', 250));
        $this->version = 'illuminate/cache of Laravel 8, phpredis ' . phpversion('redis');
        $manager = new RedisManager(null, 'phpredis', ['default' => $options->server]);
        $this->store = new RedisStore($manager);
        $this->store->connection()->ping();
    }

    /** The owner's token, or null when busy. */
    public function acquire(string $key, int $waitMs): ?string
    {
        $start = hrtime(true);
        $lock = $this->store->lock($key, $this->seconds);
        while (!$lock->get()) {
            if (since($start) >= $waitMs) {
                return null;
            }
            sleep_ms($this->pollMs);
        }
        $this->held[$key] = $lock;
        return $lock->owner();
    }

    public function release(string $key): bool
    {
        $lock = $this->held[$key] ?? null;
        if ($lock === null) {
            throw new LogicException("not held: $key");
        }
        unset($this->held[$key]);
        return $lock->release();
    }
}

/** Counts who is inside a lock, over a connection that the lock does not use. */
class Referee
{
    private Options $options;
    private ?Redis $redis = null;

    public function __construct(Options $options)
    {
        $this->options = $options;
    }

    private function redis(): Redis
    {
        if ($this->redis === null) {
            $redis = new Redis();
            $redis->connect($this->options->book['host'], $this->options->book['port']);
            if (isset($this->options->book['password'])) {
                $redis->auth($this->options->book['password']);
            }
            $redis->select($this->options->book['database']);
            $this->redis = $redis;
        }
        return $this->redis;
    }

    public function enter(string $referee): void
    {
        $this->redis()->hSet($referee, $this->options->id, '1');
    }

    public function inside(string $referee): int
    {
        return $this->redis()->hLen($referee);
    }

    public function leave(string $referee): void
    {
        $this->redis()->hDel($referee, $this->options->id);
        $this->redis()->incr("$referee:turns");
    }
}

// ---------------------------------------------------------------- line protocol

/** Reads stdin without waiting for it, so that `stop` and the end of the input are heard during `turns`. */
class Inbox
{
    private array $lines = [];
    private string $rest = '';
    private bool $ended = false;
    private bool $stopped = false;

    public function __construct()
    {
        stream_set_blocking(STDIN, false);
    }

    /** The next command; null at the end of the input, and after quit. */
    public function next(): ?string
    {
        $this->stopped = false;
        while (!$this->lines && !$this->ended) {
            $this->read(null);
        }
        return array_shift($this->lines);
    }

    /** Whether the command that runs now is to end: after stop, quit, or the end of the input. */
    public function stopped(): bool
    {
        if (!$this->ended) {
            $this->read(0);
        }
        return $this->stopped || $this->ended;
    }

    private function read(?int $seconds): void
    {
        $read = [STDIN];
        $write = $except = null;
        if (!stream_select($read, $write, $except, $seconds)) {
            return;
        }
        $got = fread(STDIN, 65536);
        $this->rest .= $got;
        while (($at = strpos($this->rest, "\n")) !== false && !$this->ended) {
            $line = rtrim(substr($this->rest, 0, $at), "\r");
            $this->rest = substr($this->rest, $at + 1);
            if ($line === 'quit') {
                $this->ended = true;
            } elseif ($line === 'stop') {
                $this->stopped = true;
            } elseif ($line !== '') {
                $this->lines[] = $line;
            }
        }
        $this->ended = $this->ended || feof(STDIN);
    }
}

/** Commands on stdin, events on stdout. */
class Console
{
    private LaravelHolder $holder;
    private Referee $referee;
    private Inbox $inbox;
    private int $busy;
    private int $errors;

    public function __construct(LaravelHolder $holder, Referee $referee)
    {
        $this->holder = $holder;
        $this->referee = $referee;
        $this->inbox = new Inbox();
    }

    public function run(): void
    {
        while (($line = $this->inbox->next()) !== null) {
            $words = explode(' ', $line);
            $op = array_shift($words);
            try {
                $this->command($op, $words);
            } catch (Unsupported $e) {
                event('unsupported', ['op' => $op]);
            } catch (Usage $e) {
                event('error', ['op' => 'protocol', 'class' => 'usage', 'message' => $e->getMessage()]);
            } catch (Throwable $e) {
                error($op, $e, $words ? ['key' => $words[0]] : []);
            }
        }
        event('bye');
        // Ends without closing anything: what is held stays held, as it would in a crash.
        exit(0);
    }

    private function command(string $op, array $words): void
    {
        $counts = ['acquire' => 1, 'try' => 1, 'release' => 1, 'renew' => 1, 'count' => 1, 'clock' => 1, 'parse' => 2, 'turns' => 4];
        if (!isset($counts[$op])) {
            throw new Usage("unknown command $op");
        }
        if (count($words) !== $counts[$op]) {
            throw new Usage("$op wants $counts[$op] words");
        }
        switch ($op) {
            case 'acquire':
                $this->attempt($words[0], $this->holder->waitMs);
                break;
            case 'try':
                $this->attempt($words[0], 0);
                break;
            case 'release':
                event('released', ['key' => $words[0], 'removed' => $this->holder->release($words[0])]);
                break;
            case 'turns':
                $this->turns($words[0], $words[1], whole($words[2]), whole($words[3]));
                break;
            default:
                throw new Unsupported();
        }
    }

    private function attempt(string $key, int $waitMs): void
    {
        $start = hrtime(true);
        $owner = $this->holder->acquire($key, $waitMs);
        if ($owner !== null) {
            event('acquired', ['key' => $key, 'waited_ms' => since($start), 'value' => $owner]);
        } else {
            event('busy', ['key' => $key, 'waited_ms' => since($start)]);
        }
    }

    /** N times acquire, enter, hold, leave, release. */
    private function turns(string $key, string $counter, int $turns, int $holdMs): void
    {
        $done = $overlaps = $this->busy = $this->errors = 0;
        while ($done < $turns && !$this->inbox->stopped()) {
            $start = hrtime(true);
            if (!$this->take($key)) {
                break;
            }
            $waited = since($start);
            $done++;
            $inside = $this->inside($counter, $done, $holdMs);
            $overlaps += $inside > 1 ? 1 : 0;
            try {
                $this->holder->release($key);
            } catch (Throwable $e) {
                $this->failed('release', $key, $e);
                sleep_ms($this->holder->pollMs);
            }
            event('turn', ['key' => $key, 'n' => $done, 'inside' => $inside, 'waited_ms' => $waited]);
        }
        event('done', ['turns' => $done, 'overlaps' => $overlaps, 'errors' => $this->errors, 'busy' => $this->busy]);
    }

    /** Tries until acquired; false when stopped before that. */
    private function take(string $key): bool
    {
        while (!$this->inbox->stopped()) {
            try {
                if ($this->holder->acquire($key, 0) !== null) {
                    return true;
                }
                $this->busy++;
            } catch (Throwable $e) {
                $this->failed('acquire', $key, $e);
            }
            sleep_ms($this->holder->pollMs);
        }
        return false;
    }

    private function inside(string $counter, int $n, int $holdMs): int
    {
        $inside = 0;
        try {
            $this->referee->enter($counter);
            event('entered', ['n' => $n]);
            $inside = $this->referee->inside($counter);
        } catch (Throwable $e) {
            $this->failed('referee', $counter, $e);
        }
        sleep_ms($holdMs);
        for ($i = 0; $i < LEAVE_TRIES; $i++) {
            try {
                $this->referee->leave($counter);
                break;
            } catch (Throwable $e) {
                $this->failed('referee', $counter, $e);
                sleep_ms(max(10, $this->holder->pollMs));
            }
        }
        return $inside;
    }

    private function failed(string $op, string $key, Throwable $e): void
    {
        $this->errors++;
        error($op, $e, ['key' => $key]);
    }
}

try {
    $options = new Options(array_slice($argv, 1));
    if ($options->kind !== 'laravel') {
        throw new Usage("unknown kind $options->kind; want laravel");
    }
    $holder = new LaravelHolder($options);
} catch (Usage $e) {
    fwrite(STDERR, 'holder: ' . $e->getMessage() . "\n");
    exit(2);
} catch (Throwable $e) {
    fwrite(STDERR, 'holder: cannot start: ' . $e->getMessage() . "\n");
    exit(1);
}
event('ready', ['kind' => $options->kind, 'version' => $holder->version, 'pid' => getmypid(), 'id' => $options->id]);
(new Console($holder, new Referee($options)))->run();
