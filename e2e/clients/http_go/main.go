// Sends requests to a router with net/http: `main URL < cases.json`. Prints the answers as JSON.
package main

import (
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"os"
	"runtime"
	"strings"
)

type request struct {
	Target, Method, Body string
	Headers, Parameters  map[string]string
}

type answer struct {
	Status int    `json:"status"`
	Body   string `json:"body"`
	Error  string `json:"error"`
}

func ask(base string, asked request) answer {
	target := base + asked.Target
	if len(asked.Parameters) > 0 {
		query := url.Values{}
		for name, value := range asked.Parameters {
			query.Set(name, value)
		}
		target += "?" + query.Encode()
	}
	made, err := http.NewRequest(asked.Method, target, strings.NewReader(asked.Body))
	if err != nil {
		return answer{Error: err.Error()}
	}
	for name, value := range asked.Headers {
		made.Header.Set(name, value)
	}
	response, err := http.DefaultClient.Do(made)
	if err != nil {
		return answer{Error: err.Error()}
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return answer{Error: err.Error()}
	}
	return answer{Status: response.StatusCode, Body: string(body)}
}

func main() {
	var requests []request
	if err := json.NewDecoder(os.Stdin).Decode(&requests); err != nil {
		panic(err)
	}
	answers := []answer{}
	for _, asked := range requests {
		answers = append(answers, ask(os.Args[1], asked))
	}
	name := "Go " + strings.TrimPrefix(runtime.Version(), "go")
	if err := json.NewEncoder(os.Stdout).Encode(map[string][]answer{name: answers}); err != nil {
		panic(err)
	}
}
