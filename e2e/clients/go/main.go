// Asks a router with an unmodified go-redis: `main HOST:PORT [FILE]`. Prints what it checked; ends with 1 at the first wrong
// answer.
package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

var ctx = context.Background()

// check ends the program unless `holds`.
func check(holds bool, what string, found ...any) {
	if !holds {
		fmt.Fprintf(os.Stderr, "go-redis %s: %s: found %v\n", redis.Version(), what, found)
		os.Exit(1)
	}
	fmt.Printf("go-redis %s: %s\n", redis.Version(), what)
}

func iata(value []byte) string {
	var airport struct{ Iata string }
	if json.Unmarshal(value, &airport) != nil {
		return ""
	}
	return airport.Iata
}

func ask(address string, protocol int) {
	client := redis.NewClient(&redis.Options{Addr: address, Protocol: protocol})
	defer client.Close()

	value, err := client.Get(ctx, "KJFK").Bytes()
	check(err == nil && iata(value) == "JFK", fmt.Sprintf("GET, RESP %d", protocol), string(value), err)
	_, err = client.Get(ctx, "nowhere").Bytes()
	check(errors.Is(err, redis.Nil), "a missing key is redis.Nil", err)
	values, err := client.MGet(ctx, "KJFK", "nowhere", " egll ").Result()
	check(err == nil && values[1] == nil && strings.Contains(values[2].(string), `"LHR"`), "MGET", values, err)
	count, err := client.Exists(ctx, "KJFK", "nowhere").Result()
	check(err == nil && count == 1, "EXISTS", count, err)
	err = client.Set(ctx, "KJFK", "x", 0).Err()
	check(err != nil && strings.HasPrefix(err.Error(), "READONLY"), "SET is refused", err)

	commands, err := client.Pipelined(ctx, func(pipeline redis.Pipeliner) error {
		for range 1000 {
			pipeline.Get(ctx, "KJFK")
		}
		return nil
	})
	right := 0
	for _, command := range commands {
		if value, err := command.(*redis.StringCmd).Bytes(); err == nil && iata(value) == "JFK" {
			right++
		}
	}
	check(err == nil && right == 1000, "a pipeline of 1,000", right, err)

	var wrong sync.Map
	var group sync.WaitGroup
	for number := range 200 {
		group.Add(1)
		go func() {
			defer group.Done()
			if value, err := client.Get(ctx, "KJFK").Bytes(); err != nil || iata(value) != "JFK" {
				wrong.Store(number, fmt.Sprint(string(value), err))
			}
		}()
	}
	group.Wait()
	failures := 0
	wrong.Range(func(_, failure any) bool { failures++; fmt.Fprintln(os.Stderr, failure); return true })
	check(failures == 0, "200 goroutines at once", failures)
}

// answer writes an answer like `run.py`.
func answer(value any, err error) string {
	switch {
	case errors.Is(err, redis.Nil):
		return "nil"
	case err != nil:
		return "!" + strings.Fields(err.Error())[0]
	}
	switch value := value.(type) {
	case nil:
		return "nil"
	case string:
		return "'" + base64.StdEncoding.EncodeToString([]byte(value))
	case []any:
		return list(value)
	case []string:
		return list(value)
	case map[string]string:
		pairs := []string{}
		for name, text := range value {
			pairs = append(pairs, answer(name, nil)+":"+answer(text, nil))
		}
		sort.Strings(pairs)
		return "{" + strings.Join(pairs, ",") + "}"
	case time.Duration: // what go-redis makes of -1 and -2
		return fmt.Sprint(int64(value))
	}
	return fmt.Sprint(value)
}

func list[T any](values []T) string {
	answers := []string{}
	for _, value := range values {
		answers = append(answers, answer(value, nil))
	}
	return "[" + strings.Join(answers, ",") + "]"
}

func result(command redis.Cmder) string {
	switch command := command.(type) {
	case *redis.StringCmd:
		return answer(command.Result())
	case *redis.IntCmd:
		return answer(command.Result())
	}
	return answer(nil, fmt.Errorf("unknown %T", command))
}

func together(commands []redis.Cmder, _ error) string {
	answers := []string{}
	for _, command := range commands {
		answers = append(answers, result(command))
	}
	return "[" + strings.Join(answers, ",") + "]"
}

func perform(client *redis.Client, name string, words []string) string {
	four := func(pipeline redis.Pipeliner) error {
		pipeline.Get(ctx, words[0])
		pipeline.HGet(ctx, words[0], words[1])
		pipeline.Get(ctx, words[2])
		pipeline.StrLen(ctx, words[0])
		return nil
	}
	switch name {
	case "GET":
		return answer(client.Get(ctx, words[0]).Result())
	case "MGET":
		return answer(client.MGet(ctx, words...).Result())
	case "EXISTS":
		return answer(client.Exists(ctx, words...).Result())
	case "TYPE":
		return answer(client.Type(ctx, words[0]).Result())
	case "TTL":
		return answer(client.TTL(ctx, words[0]).Result())
	case "STRLEN":
		return answer(client.StrLen(ctx, words[0]).Result())
	case "GETRANGE":
		return answer(client.GetRange(ctx, words[0], 2, 5).Result())
	case "HGET":
		return answer(client.HGet(ctx, words[0], words[1]).Result())
	case "HMGET":
		return answer(client.HMGet(ctx, words[0], words[1:]...).Result())
	case "HKEYS":
		return answer(client.HKeys(ctx, words[0]).Result())
	case "HGETALL":
		return answer(client.HGetAll(ctx, words[0]).Result())
	case "SET":
		return answer(client.Set(ctx, words[0], words[1], 0).Result())
	case "MULTI":
		return together(client.TxPipelined(ctx, four))
	case "PIPELINE":
		return together(client.Pipelined(ctx, four))
	}
	return answer(nil, fmt.Errorf("unknown %s", name))
}

// askTable performs the commands of a file of `run.py`. Each line is a command and its words in base64.
func askTable(address string, protocol int, path string) {
	client := redis.NewClient(&redis.Options{Addr: address, Protocol: protocol})
	defer client.Close()
	content, err := os.ReadFile(path)
	if err != nil {
		panic(err)
	}
	for number, line := range strings.Split(strings.TrimSuffix(string(content), "\n"), "\n") {
		fields := strings.Split(line, "\t")
		words := []string{}
		for _, field := range fields[1:] {
			word, _ := base64.StdEncoding.DecodeString(field)
			words = append(words, string(word))
		}
		fmt.Printf("answer\tgo-redis %s\t%d\t%s\n", redis.Version(), number, perform(client, fields[0], words))
	}
}

func main() {
	if len(os.Args) > 2 {
		askTable(os.Args[1], 2, os.Args[2])
		askTable(os.Args[1], 3, os.Args[2])
		return
	}
	ask(os.Args[1], 2)
	ask(os.Args[1], 3)
}
