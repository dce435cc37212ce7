// SPDX-License-Identifier: Apache-2.0

// names reads one JSON object per line from standard input. For each it prints one line of JSON with
// the values that Go's decoder assigns to the fields of Record, "" for none. With -letters it prints
// instead, for each ASCII letter, every character that the decoder accepts as that letter.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"reflect"
	"strings"
	"unicode/utf8"
)

// Record has the kinds of field names that occur in the files which nri-runc decodes like Go.
type Record struct {
	Config    string `json:"config"`
	Digest    string `json:"digest"`
	Disk      string `json:"disk"`
	Class     string `json:"Classes"`
	HugePages string `json:"hugepageLimits"`
	KernelTCP string `json:"kernelTCP"`
	MaskedK   string `json:"k-s_1"`
}

// letters prints the characters that Go accepts for each one-letter field name.
func letters() error {
	fields := make([]reflect.StructField, 26)
	for i := range fields {
		name := string(rune('a' + i))
		fields[i] = reflect.StructField{
			Name: strings.ToUpper(name),
			Type: reflect.TypeFor[int](),
			Tag:  reflect.StructTag(fmt.Sprintf("json:%q", name)),
		}
	}
	record := reflect.StructOf(fields)
	taken := make(map[string][]int)
	for r := rune(0); r <= utf8.MaxRune; r++ {
		if !utf8.ValidRune(r) {
			continue
		}
		name, err := json.Marshal(string(r))
		if err != nil {
			return err
		}
		value := reflect.New(record)
		if err := json.Unmarshal([]byte("{"+string(name)+":1}"), value.Interface()); err != nil {
			return err
		}
		for i := range fields {
			if value.Elem().Field(i).Int() == 1 {
				letter := string(rune('a' + i))
				taken[letter] = append(taken[letter], int(r))
			}
		}
	}
	return json.NewEncoder(os.Stdout).Encode(taken)
}

func records() error {
	lines, out := bufio.NewScanner(os.Stdin), json.NewEncoder(os.Stdout)
	for lines.Scan() {
		var record Record
		if err := json.Unmarshal(lines.Bytes(), &record); err != nil {
			return err
		}
		if err := out.Encode(record); err != nil {
			return err
		}
	}
	return lines.Err()
}

func main() {
	each := flag.Bool("letters", false, "tell about every character")
	flag.Parse()
	run := records
	if *each {
		run = letters
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
